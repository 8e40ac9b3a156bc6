"""Every key of the configuration, by its dotted name."""

from harness.schema.key import Key
from harness.schema.keys.plugins import PLUGINS
from harness.schema.keys.run import DEVICE, MODEL, RUN, SERVER
from harness.schema.keys.tasks import TASKS
from harness.schema.keys.workload import WORKLOAD

GROUPS = {
    "A run": RUN,
    "Device": DEVICE,
    "Your own server (`device=server`)": SERVER,
    "Model": MODEL,
    "Workload": WORKLOAD,
    "Allocator, reservation and scheduler": PLUGINS,
    "Experiments": TASKS,
}
KEYS: dict[str, Key] = {key.name: key for group in GROUPS.values() for key in group}
SECTIONS = {name[:dot] for name in KEYS for dot, letter in enumerate(name) if letter == "."}  # keys that hold keys
