"""Run where the package `perfetto` is installed: `trace.json` as Perfetto's own protobuf, written and read back."""

import json
import sys
from collections import Counter

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


def main(source: str) -> None:
    """Print what Perfetto's messages hold: processes, tracks, begins, ends, instants, values of counters."""
    with open(source, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    trace = Trace()
    tracks: dict[tuple, int] = {}

    def track(*key: object) -> int:
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            descriptor = trace.packet.add().track_descriptor
            descriptor.uuid = tracks[key]
            if key[0] == "counter":
                descriptor.name = f"{key[2]} {key[3]}"
                descriptor.counter.SetInParent()
        return tracks[key]

    def add(event: dict, kind: int, when: int, track_uuid: int) -> TrackEvent:
        packet = trace.packet.add()
        packet.timestamp = when * 1000  # integers only: protobuf refuses anything else
        packet.trusted_packet_sequence_id = 1
        packet.track_event.type = kind
        packet.track_event.track_uuid = track_uuid
        packet.track_event.name = event["name"]
        return packet.track_event

    for event in events:
        pid, tid = event["pid"], event["tid"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            track("thread", pid, tid)
            trace.packet[-1].track_descriptor.thread.pid = pid
            trace.packet[-1].track_descriptor.thread.tid = tid
            trace.packet[-1].track_descriptor.name = event["args"]["name"]
        elif event["ph"] in "BEi":
            kinds = {"B": TrackEvent.TYPE_SLICE_BEGIN, "E": TrackEvent.TYPE_SLICE_END, "i": TrackEvent.TYPE_INSTANT}
            add(event, kinds[event["ph"]], event["ts"], track("thread", pid, tid))
        elif event["ph"] == "X":
            add(event, TrackEvent.TYPE_SLICE_BEGIN, event["ts"], track("thread", pid, tid))
            add(event, TrackEvent.TYPE_SLICE_END, event["ts"] + event["dur"], track("thread", pid, tid))
        elif event["ph"] == "C":
            for name, value in event["args"].items():
                uuid = track("counter", pid, event["name"], name)
                add(event, TrackEvent.TYPE_COUNTER, event["ts"], uuid).counter_value = value
    read = Trace.FromString(trace.SerializeToString())
    assert read == trace
    names = {packet.track_descriptor.uuid: packet.track_descriptor.name for packet in read.packet
             if packet.HasField("track_descriptor")}  # fmt: skip
    found = Counter()
    depth = Counter()
    for packet in read.packet:
        if packet.HasField("track_event"):
            event = packet.track_event
            assert names[event.track_uuid], "a track without a name"
            found[TrackEvent.Type.Name(event.type)] += 1
            depth[event.track_uuid] += {TrackEvent.TYPE_SLICE_BEGIN: 1, TrackEvent.TYPE_SLICE_END: -1}.get(
                event.type, 0
            )
            assert depth[event.track_uuid] >= 0, "a slice ends that never began"
    assert not any(depth.values()), "a slice never ends"
    print(json.dumps({"tracks": len(names), **found}))


main(sys.argv[1])
