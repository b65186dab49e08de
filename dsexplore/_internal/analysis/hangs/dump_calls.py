"""Reads the evidence of a hang from flight-recorder dumps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import WITH_TAGS, GroupId, JobCalls, RankCall, RankCalls, kinds
from dsexplore._internal.analysis.hangs.wavefront import END_TOGETHER
from dsexplore._internal.trace.importers.dumps import Dumps
from dsexplore._internal.trace.importers.recorder_dump import RecorderDump
from dsexplore._internal.trace.importers.recorder_entry import RecorderEntry, Sizes
from dsexplore._internal.trace.importers.recorder_tables import is_sized, message_bytes, numel
from dsexplore._internal.units import format_ranks

_WITHOUT_TRAFFIC = frozenset({"unknown:split", "unknown:new_window"})
"""Entries for the creation of a communicator, which is no collective of the program."""
_OF_EQUAL_PARTS = ("_base", "_single", "into_tensor", "scatter_tensor")
"""Parts of the names of ops to which all ranks pass equal sizes."""
_MESSAGES = ("send", "recv")
_MOST_NAMED = 4
"""Number of groups that a note names."""
_CLOCK_SKEW_NS = 3_000_000_000
"""Nanoseconds by which clocks of two hosts may differ; a restart of a job takes longer."""
_ENQUEUED, _COMPLETED = 0, 2
"""Indices in the tuples of `RecorderDump.status`."""


def job_of_dumps(dumps: Dumps) -> JobCalls:
    """Build the calls of each rank from the dumps of a job."""
    older = ranks_of_earlier_attempts(dumps.dumps)
    latest = [dump for dump in dumps.dumps if dump.rank not in older]
    groups = _Groups(latest)
    world = max(dumps.world_size, *(max(group.ranks, default=0) + 1 for group in groups.all()), 1)
    ranks = {dump.rank: _rank_calls(dump, groups, world) for dump in latest}
    missing = [rank for rank in range(world) if rank not in ranks]
    notes = [*(f"rank {dump.rank} left an empty file" for dump in latest if dump.note), *dumps.unreadable]
    notes += groups.notes()
    notes += [dump.note_on_unwritten for dump in latest if dump.unwritten]
    if older:
        notes.append(f"the dump of {format_ranks(sorted(older))} is of an earlier attempt of the job, and left out")
    if missing:
        notes.append(f"{format_ranks(missing)} left no dump{' of this attempt' if older else ''}")
    for rank in missing:
        ranks[rank] = RankCalls(rank, has_evidence=False, is_whole=False)
    return JobCalls(ranks, world, tuple(notes), unlisted=groups.unlisted)


def ranks_of_earlier_attempts(dumps: Iterable[RecorderDump]) -> set[int]:
    """Return the ranks whose dumps are left from an earlier attempt of the job.

    A collective of `END_TOGETHER` ends on no rank before all ranks have issued it. If it ended on one rank before
    another rank issued the one of that number, these are of two attempts. Clocks of two hosts may differ, so the
    difference must exceed `_CLOCK_SKEW_NS`. Only groups count whose ranks the dumps list.
    """
    ended: dict[tuple[GroupId, int], dict[int, int]] = defaultdict(dict)
    issued: dict[tuple[GroupId, int], dict[int, int]] = defaultdict(dict)
    for dump in dumps:
        for entry in dump.entries:
            _, members = dump.groups.get(entry.group, ("", ()))
            if members and entry.op in END_TOGETHER and entry.created is not None:
                place = GroupId(entry.group, members), entry.sequence
                issued[place].setdefault(dump.rank, entry.created)
                if entry.ended is not None:
                    ended[place].setdefault(dump.rank, entry.ended)
    return {
        rank
        for place, by_rank in ended.items()
        for rank, end in by_rank.items()
        if max(issued[place].values()) > end + _CLOCK_SKEW_NS
    }


def _rank_calls(dump: RecorderDump, groups: _Groups, world: int) -> RankCalls:
    """Return the calls of one rank from its dump."""
    entries = [entry for entry in dump.entries if _is_call(entry)]
    if dump.is_of_active:  # such a dump has only some of the completed calls: those of coalesced calls in flight
        entries = [entry for entry in entries if entry.state != "completed"]
    return RankCalls(
        dump.rank,
        _calls(dump.rank, entries, groups),
        has_evidence=not dump.note,
        has_empty_file=bool(dump.note),
        is_whole=bool(dump.entries) and _is_whole(dump),
        enqueued=groups.counted(dump, _ENQUEUED),
        completed=groups.counted(dump, _COMPLETED),
        replicas=groups.replicas(dump, world),
    )


def _is_call(entry: RecorderEntry) -> bool:
    """Return True if an entry is a collective or a message; the entry that ends a coalesced call is neither."""
    return entry.op in _MESSAGES or (not entry.is_p2p and entry.op not in _WITHOUT_TRAFFIC)


def _is_whole(dump: RecorderDump) -> bool:
    """Return True if the entries start with the rank's first call and none is missing."""
    if dump.unwritten or not dump.entries or dump.entries[0].record != 0:
        return False
    # The entry that ends each coalesced call has been removed by the reader of dumps.
    removed = len({entry.batch for entry in dump.entries if entry.batch is not None})
    return dump.entries[-1].record < len(dump.entries) + removed


class _CallFields(NamedTuple):
    """The fields of a `RankCall` that are equal in each step of a program."""

    group: GroupId
    label: str
    kind: str
    sent: int | None
    received: int | None
    dtype: str
    message_bytes: int | None
    pair: tuple[int, int] | None
    has_equal_parts: bool


def _calls(rank: int, entries: Iterable[RecorderEntry], groups: _Groups) -> list[RankCall]:
    """Return the calls of a rank's entries; fields that repeat in each step are computed once."""
    fields_of: dict[tuple[Any, ...], _CallFields] = {}
    calls = []
    for position, entry in enumerate(entries):
        shapes = entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes
        key = entry.group, entry.raw_op, *shapes
        fields = fields_of.get(key)
        if fields is None:
            fields = fields_of[key] = _call_fields(rank, entry, groups)
        calls.append(
            RankCall(
                rank=rank,
                position=position,
                number=entry.sequence,
                op=entry.op,
                state=entry.state,
                source=entry.source,
                batch=entry.batch,
                created=entry.created,
                record=entry.record,
                has_tag=entry.raw_op.startswith(WITH_TAGS),
                **fields._asdict(),
            )
        )
    return calls


def _call_fields(rank: int, entry: RecorderEntry, groups: _Groups) -> _CallFields:
    """Return the fields of an entry's call that repeat in each step."""
    group = groups.of(rank, entry.group)
    pair = None
    if entry.op in _MESSAGES and entry.peers is not None and max(entry.peers) < len(group.ranks):
        pair = group.ranks[entry.peers[0]], group.ranks[entry.peers[1]]
    label, kind = groups.names(group)
    return _CallFields(
        group=group,
        label=label,
        kind=kind,
        sent=_elements(entry.input_sizes),
        received=_elements(entry.output_sizes),
        dtype=_dtype(entry.op, entry.input_dtypes, entry.output_dtypes),
        message_bytes=message_bytes(entry, len(group.ranks) or 1) if is_sized(entry) else None,
        pair=pair,
        has_equal_parts=any(part in entry.raw_op for part in _OF_EQUAL_PARTS),
    )


def _dtype(op: str, input_dtypes: tuple[str, ...], output_dtypes: tuple[str, ...]) -> str:
    """Return the dtype that is sent; ``sent→received`` if a different one is received; empty for a barrier."""
    if op == "barrier":
        return ""
    sent = input_dtypes[0] if input_dtypes else ""
    received = output_dtypes[0] if output_dtypes else ""
    return f"{sent}→{received}" if sent and received and sent != received else sent or received


def _elements(sizes: Sizes) -> int | None:
    return numel(sizes) if sizes and sizes != ((),) else None


class _Groups:
    """The groups of all dumps. Each process lists its own; with gloo, none are listed."""

    def __init__(self, dumps: Iterable[RecorderDump]) -> None:
        self._dumps = tuple(dumps)
        self._by_name: dict[str, list[GroupId]] = defaultdict(list)
        self._descriptions: dict[GroupId, str] = {}
        self._group_of_name: dict[tuple[int, str], GroupId] = {}
        """{(rank, name): the group that the rank's dump lists}."""
        self._names: dict[GroupId, tuple[str, str]] = {}
        """{group: (name in reports, kind)}."""
        self._guessed: list[GroupId] = []
        """Groups whose ranks no dump lists."""
        for dump in self._dumps:
            for name, (description, ranks) in dump.groups.items():
                if ranks:
                    self._add(GroupId(name, ranks), description)
                    self._group_of_name[dump.rank, name] = GroupId(name, ranks)
        self._add_unlisted()

    def _add(self, group: GroupId, description: str) -> None:
        if group not in self._by_name[group.name]:
            self._by_name[group.name].append(group)
        if description and not self._descriptions.get(group):
            self._descriptions[group] = description

    def _add_unlisted(self) -> None:
        """Add the groups whose ranks no dump lists: the default group with all ranks, others with their callers."""
        callers: dict[str, set[int]] = defaultdict(set)
        descriptions: dict[str, str] = {}
        for dump in self._dumps:
            for entry in dump.entries:
                if entry.group not in self._by_name:
                    callers[entry.group].add(dump.rank)
                    descriptions.setdefault(entry.group, entry.description)
        everyone = set(range(max((dump.rank for dump in self._dumps), default=-1) + 1))
        for name, ranks in callers.items():
            is_default = descriptions[name] == "default_pg" or name == "0"
            group = GroupId(name, tuple(sorted(everyone if is_default else ranks)))
            self._add(group, descriptions[name])
            if not is_default:
                self._guessed.append(group)

    @property
    def unlisted(self) -> frozenset[GroupId]:
        """Groups whose ranks no dump lists, other than the default one."""
        return frozenset(self._guessed)

    def notes(self) -> list[str]:
        """Return a note on groups whose ranks no dump lists, as a rank that did not call there may be missing."""
        names = list(dict.fromkeys(self.names(group)[0] for group in self._guessed))
        if not names:
            return []
        more = len(names) - _MOST_NAMED
        shown = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return [
            f"no dump lists the ranks of group {shown}: those that called there are taken for all of them, so one that "
            "never did is not named"
        ]

    def all(self) -> list[GroupId]:
        """Return all groups."""
        return [group for groups in self._by_name.values() for group in groups]

    def of(self, rank: int, name: str) -> GroupId:
        """Return the group that `rank` calls `name`."""
        group_id = self._group_of_name.get((rank, name))
        if group_id is not None:
            return group_id
        with_rank = [group for group in self._by_name[name] if rank in group.ranks]
        return with_rank[0] if with_rank else GroupId(name, (rank,))

    def names(self, group: GroupId) -> tuple[str, str]:
        """Return the name of a group in reports and its kind, see `kinds`.

        The name is the mesh axis or description, else `GroupId.title`.
        """
        if group not in self._names:
            described = self._descriptions.get(group, "")
            label = described.removeprefix("mesh_")
            if described in ("", "undefined", "default_pg"):
                label = "default" if described == "default_pg" else group.title
            self._names[group] = label, self._kinds.get(group, group.name)
        return self._names[group]

    @cached_property
    def _kinds(self) -> dict[GroupId, str]:
        return kinds({group: self._descriptions.get(group, "") for group in self.all()})

    def counted(self, dump: RecorderDump, status: int) -> Mapping[GroupId, int]:
        """Return {group: last sequence number that a rank counted}, for groups without messages.

        Groups with messages are omitted, and all groups of gloo: they count messages too.

        Args:
            dump: the dump of the rank.
            status: `_ENQUEUED` or `_COMPLETED`.
        """
        if any(entry.raw_op.startswith("gloo") for entry in dump.entries):
            return {}
        return {
            self.of(dump.rank, name): dump.status[number][status]
            for number, name in self._numbers.get(dump.rank, {}).items()
            if number in dump.status and name not in self._groups_with_messages
        }

    def replicas(self, dump: RecorderDump, world: int) -> frozenset[int]:
        """Return the ranks that run the same program as this one, judged by their groups.

        These are the members of its groups, except groups of the whole world and groups that exchange messages, as
        stages of a pipeline do.
        """
        members = [ranks for name, (_, ranks) in dump.groups.items() if name not in self._groups_with_messages]
        return frozenset(rank for ranks in members if len(ranks) < world for rank in ranks)

    @cached_property
    def _groups_with_messages(self) -> set[str]:
        return {entry.group for dump in self._dumps for entry in dump.entries if entry.is_p2p}

    @cached_property
    def _numbers(self) -> dict[int, dict[int, str]]:
        """{rank: {number of a group: its name}}.

        A process numbers its groups in order of creation, which is the order of their names if these are numbers. If
        the entries of any rank contradict that, only numbers found in entries are used.
        """
        in_entries = {
            dump.rank: {entry.group_number: entry.group for entry in dump.entries if entry.group_number is not None}
            for dump in self._dumps
        }
        ordered = {}
        for dump in self._dumps:
            digits = [name for name in dump.groups if name.isdigit()]
            ordered[dump.rank] = dict(enumerate(sorted(digits, key=int))) if len(digits) == len(dump.groups) else {}
        for rank, names in in_entries.items():
            if any(ordered[rank].get(number) != name for number, name in names.items()):
                return in_entries
        return {rank: {**ordered[rank], **names} for rank, names in in_entries.items()}
