"""Messages between two recorded ranks whose send and receive do not match.

A rank must receive what another rank sends it: as many messages, of the same sizes, and in an uneven all_to_all as many
elements. Otherwise the program hangs, or writes past a buffer, on a real cluster.

Messages of one pair of ranks in one group are compared by size, not by order, because tags may change their order. A
recv from any rank takes any unmatched send to its rank. Messages of ranks that are not in the trace are not compared,
nor those of object collectives, whose sizes a simulated rank cannot know.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import polars as pl

from dsexplore._internal.trace.item_size import item_size
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes

COLUMNS: dict[str, pl.DataType] = {
    "op": pl.String(),  # send, or all_to_all
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "group": pl.String(),
    "sent_bytes": pl.Int64(),  # null where nothing is sent
    "received_bytes": pl.Int64(),  # null where nothing is received
    "send_source": pl.String(),  # the line that sends; "" for none
    "recv_source": pl.String(),
}

Row = dict[str, Any]
Pair = tuple[int, int, str]
"""Sender, receiver, and the ranks of their group as text, since processes may name one group differently."""


def unmatched(tables: Tables) -> pl.DataFrame:
    """Return one row per message that is sent but not received, received but not sent, or received with another size.

    Returns:
        A frame with the columns `COLUMNS`; empty if all messages match.
    """
    events = tables.events
    messages = events.filter(pl.col("op").is_in(["send", "recv", "all_to_all"]) & ~pl.col("is_object"))
    if messages.is_empty():
        return pl.DataFrame(schema=COLUMNS)
    ranks = set(tables.info.ranks) | set(events["rank"])
    members = {name: list(held) for name, held in tables.groups.select("group", "ranks").iter_rows()}
    rows = list(messages.iter_rows(named=True))
    unmatched_rows = [*_messages(rows, ranks, members), *_parts(rows, members)]
    return pl.DataFrame(unmatched_rows, schema=COLUMNS, orient="row")


def notes(tables: Tables, most: int = 3) -> list[str]:
    """Return unmatched messages as notes of a merged trace: sentences for the first few, and a count of the rest."""
    table = unmatched(tables)
    texts = [_text(row) for row in table.head(most).iter_rows(named=True)]
    more = table.height - len(texts)
    return texts + ([f"{more:,} more messages do not fit together: see Trace.unmatched()"] if more > 0 else [])


def _text(row: Row) -> str:
    """Return the sentence on a row of `COLUMNS`."""
    sender, receiver = f"rank {row['sender']}", f"rank {row['receiver']}"
    sent, received = format_bytes(row["sent_bytes"]), format_bytes(row["received_bytes"])
    send_source, recv_source = row["send_source"], row["recv_source"]
    if row["received_bytes"] is None:
        last = f" (its last recv from there is at {recv_source})" if recv_source else ""
        return f"{sender} sends {sent} to {receiver} at {send_source}, and {receiver} does not receive them{last}"
    if row["sent_bytes"] is None:
        last = f" (its last send there is at {send_source})" if send_source else ""
        return f"{receiver} receives {received} from {sender} at {recv_source}, and {sender} does not send them{last}"
    where = "in an all_to_all " if row["op"] == "all_to_all" else ""
    return f"{where}{sender} sends {sent} to {receiver} at {send_source}, which receives {received} at {recv_source}"


def _messages(rows: Iterable[Row], ranks: set[int], members: dict[str, list[int]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each send and receive that do not match."""
    sends: dict[Pair, list[Row]] = defaultdict(list)
    receives: dict[Pair, list[Row]] = defaultdict(list)
    from_any: Counter[tuple[int, str]] = Counter()
    for row in rows:
        key = _key(row, members)
        if row["op"] == "send" and row["peer"] is not None:
            sends[row["rank"], row["peer"], key].append(row)
        elif row["op"] == "recv" and row["peer"] is not None:
            receives[row["peer"], row["rank"], key].append(row)
        elif row["op"] == "recv":
            from_any[row["rank"], key] += 1
    for pair in dict.fromkeys((*sends, *receives)):
        sender, receiver, key = pair
        if not {sender, receiver} <= ranks:
            continue
        sent, received = sends.get(pair, []), receives.get(pair, [])
        if any(row["message_bytes"] is None for row in (*sent, *received)):
            continue  # it is not known which of them match
        sizes = Counter(row["message_bytes"] for row in sent) & Counter(row["message_bytes"] for row in received)
        sent_alone, received_alone = _without_counterpart(sent, sizes), _without_counterpart(received, sizes)
        matched_by_any = min(from_any[receiver, key], max(len(sent_alone) - len(received_alone), 0))
        from_any[receiver, key] -= matched_by_any
        for send, recv in zip_longest(sent_alone[matched_by_any:], received_alone):
            yield _row(
                op="send",
                sender=sender,
                receiver=receiver,
                sent=send,
                received=recv,
                last_sent=sent[-1:],
                last_received=received[-1:],
            )


def _without_counterpart(rows: Sequence[Row], matched_sizes: Counter[int]) -> list[Row]:
    """Return the sends or receives beyond the number of matched ones of their size."""
    remaining = matched_sizes.copy()
    unmatched_rows = []
    for row in rows:
        if remaining[row["message_bytes"]] > 0:
            remaining[row["message_bytes"]] -= 1
        else:
            unmatched_rows.append(row)
    return unmatched_rows


def _parts(rows: Iterable[Row], members: dict[str, list[int]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each mismatched part of uneven all_to_alls; the k-th calls of two ranks are compared."""
    of_group: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["op"] == "all_to_all" and row["group"] in members:
            of_group[_key(row, members)][row["rank"]].append(row)
    for calls in of_group.values():
        for sender, sending in calls.items():
            for receiver, receiving in calls.items():
                for sender_call, receiver_call in zip(sending, receiving, strict=False):
                    if sender_call["send_splits"] is None and receiver_call["recv_splits"] is None:
                        continue
                    sent = _part(sender_call, "send_splits", members[sender_call["group"]], receiver)
                    received = _part(receiver_call, "recv_splits", members[receiver_call["group"]], sender)
                    if None not in (sent, received) and sent != received:
                        yield _row(
                            op="all_to_all",
                            sender=sender,
                            receiver=receiver,
                            sent={**sender_call, "message_bytes": sent},
                            received={**receiver_call, "message_bytes": received},
                        )


def _part(row: Row, splits: str, members: Sequence[int], rank: int) -> int | None:
    """Return the bytes of one rank's part: by the split sizes, or an equal share; None if the size is unknown."""
    if row["message_bytes"] is None or rank not in members:
        return None
    if row[splits] is None:
        return int(row["message_bytes"]) // int(row["group_size"])
    size = item_size(row["dtype"])
    if size is None or len(row[splits]) != len(members):
        return None
    return int(row[splits][members.index(rank)]) * size


def _key(row: Row, members: dict[str, list[int]]) -> str:
    """Return the ranks of a row's group as text, or its name if they are unknown."""
    return str(members.get(row["group"], row["group"]))


def _row(
    *,
    op: str,
    sender: int,
    receiver: int,
    sent: Row | None,
    received: Row | None,
    last_sent: Sequence[Row] = (),
    last_received: Sequence[Row] = (),
) -> tuple[Any, ...]:
    """Return a row of `COLUMNS`.

    The source of a missing message is that of the pair's last message in that direction.
    """
    send_rows = [sent] if sent else list(last_sent)
    recv_rows = [received] if received else list(last_received)
    return (
        op,
        sender,
        receiver,
        (sent or received or {}).get("group", ""),
        sent["message_bytes"] if sent else None,
        received["message_bytes"] if received else None,
        send_rows[0]["source"] if send_rows else "",
        recv_rows[0]["source"] if recv_rows else "",
    )
