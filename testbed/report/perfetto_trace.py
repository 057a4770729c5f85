"""The trace file that Perfetto itself writes, protocol buffers, made of the events of `trace_events`.

Its packets are described at https://perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.errors import InputError

SUFFIXES = (".perfetto-trace", ".pftrace")
SEQUENCE = 1  # all packets are of one writer


def perfetto_trace(content: Mapping[str, Any]) -> bytes:
    """The content of such a file; times are nanoseconds on the run's clock.

    Parameters
    ----------
    content : of `trace_events`

    Raises
    ------
    InputError
        The package `perfetto` is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
    except ImportError:
        raise InputError(
            "this needs the package perfetto: pip install 'geo-testbed[timeline]', or take .json"
        ) from None
    trace = pb.Trace()
    events = content["traceEvents"]
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    for each in events:
        if each["name"] == "process_name":
            described = trace.packet.add().track_descriptor
            described.uuid, described.process.pid = each["pid"], each["pid"]
            described.process.process_name = each["args"]["name"]
    # A message has a track of its own; those of one name that do not overlap are shown as one.
    tracks = dict.fromkeys(_track(each) for each in events if each["ph"] != "M")
    uuids = {track: len(events) + number for number, track in enumerate(tracks)}
    counters = {_track(each) for each in events if each["ph"] == "C"}
    for track, uuid in uuids.items():
        described = trace.packet.add().track_descriptor
        described.uuid, described.parent_uuid, described.name = uuid, track[0], names[track[:2]]
        if track in counters:
            described.counter.unit_name = "Mbit/s"
    types, packets = pb.TrackEvent.Type, []
    for each in events:
        at_ns = round(1000 * each.get("ts", 0))
        match each["ph"]:
            case "X":
                packets.append((at_ns, 1, types.TYPE_SLICE_BEGIN, each))
                done_ns = round(1000 * (each["ts"] + each["dur"]))  # rounded as the next slice's beginning is
                packets.append((max(done_ns, at_ns + 1), 0, types.TYPE_SLICE_END, each))
            case "b" | "e" as half:
                kind = types.TYPE_SLICE_BEGIN if half == "b" else types.TYPE_SLICE_END
                packets.append((at_ns, 1 if half == "b" else 0, kind, each))
            case "s" | "f":
                packets.append((at_ns, 2, types.TYPE_INSTANT, each))
            case "C":
                packets.append((at_ns, 2, types.TYPE_COUNTER, each))
    for at_ns, _, kind, each in sorted(packets, key=lambda packet: packet[:2]):
        packet = trace.packet.add()
        packet.timestamp, packet.trusted_packet_sequence_id = at_ns, SEQUENCE
        event = packet.track_event
        event.type, event.track_uuid = kind, uuids[_track(each)]
        if kind == types.TYPE_COUNTER:
            event.double_counter_value = each["args"]["Mbit/s"]
        elif kind != types.TYPE_SLICE_END:
            event.name = each["name"]
        if kind == types.TYPE_INSTANT:
            (event.flow_ids if each["ph"] == "s" else event.terminating_flow_ids).append(each["id"])
    return bytes(trace.SerializeToString())


def _track(event: Mapping[str, Any]) -> tuple[int, int, int]:
    """What says which track an event is on: process, thread, and of messages on their way which one it is."""
    return event["pid"], event["tid"], event["id"] if event["ph"] in "be" else 0
