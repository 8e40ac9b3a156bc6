"""Which folder is imported under which name; everything else stands in pyproject.toml."""

import shutil

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

PLACES = {
    "harness": "harness",
    "harness.experiments": "experiments",
    "allocators": "allocators",
    "schedulers": "schedulers",
    "kvlab_kernels": "kernels/kvlab_kernels",  # `kernels` is the name of a Hugging Face package
    "kvlab_conformance": "tests/conformance",  # `tests` is everybody's
}


class Afresh(build_py):
    """A build that an earlier one leaves nothing in: what was deleted or renamed since would be packed again."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    package_dir=PLACES,
    packages=[name + part for name, place in PLACES.items()
              for part in ("", *(f".{sub}" for sub in find_namespace_packages(place) if "__pycache__" not in sub))],
    cmdclass={"build_py": Afresh},
)  # fmt: skip
