"""The rows of a job with `commit=job`: staged in lists of the server, and published by one script.

A server runs a script alone: readers see the rows of a job all at once, and the script that publishes also holds the
claim to be the run's, so that an overtaken run publishes nothing, and a published pair is published once.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import redis

from spark_channel.clock import utc_text
from spark_channel.connectors.base import claims
from spark_channel.connectors.base.claims import (
    Claim,
    ClaimDecision,
    HeldClaim,
    Identity,
    own_process,
)
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.kept_claims import (
    KeptClaim,
    joined,
    kept_of,
    numbers,
    ranges_of_bits,
    without,
    without_bits,
)
from spark_channel.connectors.redis.client import connected, explained, is_busy, is_passing
from spark_channel.connectors.redis.commands import Command
from spark_channel.connectors.redis.options import RedisWriteOptions
from spark_channel.errors import CommitError, TargetError
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = ["OWN_KEYS", "PAGE", "Stage", "Staging", "packed"]

_log = log_of(__name__)

_NAMES = "spark-channel"
OWN_KEYS = f"{_NAMES}:".encode()
"""How the names of claims and stages begin."""
_STAGED_SECONDS = 7 * 86_400
_JOB_SECONDS = 30 * 86_400
PAGE = 1_000
_TRIES = 100
_TYPES = {"hash": "hash", "list": "list", "set": "set", "zset": "zset"}
_PER_KEY = 20_000
# KEYS: the claim, the bits of published versions (or the claim again), the stages. ARGV: the claim as it must be, as it
# will be, the seconds that it is kept ("" = forever), the type that keys must have ("" = any), the version's bit
# ("" = it has none), the lengths of the stages.
# An error in the middle takes nothing back: each reason for a refusal is checked before the first command.
_PUBLISH = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'claim'} end
for i = 3, #KEYS do
  if redis.call('LLEN', KEYS[i]) ~= tonumber(ARGV[i + 3]) then return {'lost', KEYS[i]} end
end
if ARGV[5] ~= '' then
  local kind = redis.call('TYPE', KEYS[2])['ok']
  if kind ~= 'none' and kind ~= 'string' then return {'type', KEYS[2]} end
end
local function each(work)
  for i = 3, #KEYS do
    local n = tonumber(ARGV[i + 3])
    for from = 0, n - 1, 500 do
      for _, item in ipairs(redis.call('LRANGE', KEYS[i], from, from + 499)) do
        local bad = work(cmsgpack.unpack(item))
        if bad then return bad end
      end
    end
  end
end
local why
local bad = each(function(command)
  if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(command)) then
    why = 'denied'
    return command[1] .. ' ' .. command[2]
  end
  if ARGV[4] ~= '' then
    local kind = redis.call('TYPE', command[2])['ok']
    if kind ~= 'none' and kind ~= ARGV[4] then
      why = 'type'
      return command[2]
    end
  end
end)
if bad then return {why, bad} end
each(function(command) redis.call(unpack(command)) end)
if ARGV[5] ~= '' then
  -- By GET and SET, which a writer's user may call anyway.
  local bits, place = redis.call('GET', KEYS[2]) or '', math.floor(ARGV[5] / 8)
  bits = bits .. string.rep('\0', place + 1 - #bits)
  local byte = bit.bor(bits:byte(place + 1), bit.rshift(128, ARGV[5] % 8))
  redis.call('SET', KEYS[2], bits:sub(1, place) .. string.char(byte) .. bits:sub(place + 2))
end
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return {'done'}
"""
_REVERSED = [int(f"{byte:08b}"[::-1], 2) for byte in range(256)]


def packed(command: Command) -> bytes:
    """As cmsgpack of the server reads it: an array of raw strings."""
    parts = [struct.pack(">BI", 0xDB, len(argument)) + argument for argument in command]
    return struct.pack(">BI", 0xDD, len(command)) + b"".join(parts)


class Staging:
    """The claim of one write, and what its tasks staged."""

    def __init__(self, options: RedisWriteOptions) -> None:
        self._options = options
        self._retry = Retry(options.retry_timeout, what=f"publishing to {options.address}")

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with connected(self._options, TargetError) as client:
            yield client

    @property
    def target(self) -> str:
        """Without the server, which holds the claim itself, and may have several names."""
        return f"{self._options.key_prefix}* of database {self._options.database}"

    def take(self, context: WriteContext) -> ClaimDecision:
        """Claim the write, and remove the staging of an overtaken run."""
        identity = Identity.for_write(self.target, context)
        position = context.stream[1] if context.stream else None
        process = "" if context.stream is not None else own_process()
        decisions: list[ClaimDecision] = []

        def change(current: Claim | None) -> Claim | None:
            decision = claims.take(
                current, identity, context.job, position=position, process=process, now=utc_text()
            )
            decisions[:] = [decision]
            return decision.claim

        with self._connected() as client:
            if identity.kind == "txn":
                self._check_kept(client)
            self._change(client, identity, change)
            (decision,) = decisions
            if decision.overtaken is not None:
                self._remove(client, identity, decision.overtaken.epoch)
        return decision

    def _check_kept(self, client: Any) -> None:
        """Check that the server keeps the claim, which says that a pair was published."""
        try:
            memory = client.info("memory")
        except redis.ResponseError:
            return  # this login, or a hosted server, does not say
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys"):
            raise TargetError(
                f"{self._options.address}: the server's 'maxmemory-policy' is {policy}: it may remove "
                "the record that a transaction id was published, and a rerun would write the rows again. "
                "Use another policy (noeviction), or write without option 'txn'"
            )

    def _change(self, client: Any, identity: Identity, change: Any) -> None:
        """Write the claim as `change` decides it, if no other client has written it meanwhile."""
        self._retry.call(lambda: self._change_now(client, identity, change), is_busy)

    def _change_now(self, client: Any, identity: Identity, change: Any) -> None:
        key = _claim_key(identity)
        for _ in range(_TRIES):
            with client.pipeline(transaction=True) as pipeline:
                pipeline.watch(key)
                changed = change(_found(pipeline, identity, pipeline.get(key)))
                if changed is None:
                    return
                pipeline.multi()
                pipeline.set(key, _text(changed))
                if identity.kind == "job":
                    pipeline.expire(key, _JOB_SECONDS)
                try:
                    pipeline.execute()
                except redis.WatchError:
                    continue
                return
        raise CommitError(
            f"{self._options.address}: other runs changed the claim of {identity.shown} {_TRIES} times; "
            "run again when they have ended"
        )

    def publish(self, claim: HeldClaim, receipts: Sequence[Receipt]) -> bool:
        """Make the rows of `receipts` visible, once. False: another run has published the write.

        Raises:
            SupersededError: another run took over. CommitError: nothing was published, and why.
        """
        rows, nbytes = (
            sum(receipt.rows for receipt in receipts),
            sum(receipt.nbytes for receipt in receipts),
        )
        if rows > self._options.job_rows:
            raise CommitError(
                f"{self._options.address}: the job has {rows} rows, and option 'jobRows' takes "
                f"{self._options.job_rows}: the server answers no other client while it publishes them. Raise it, "
                "or use commit=task. Nothing was published"
            )
        staged = [
            (str(receipt.details["stage"]), int(receipt.details["items"])) for receipt in receipts
        ]
        staged = [(key, items) for key, items in staged if items]

        def attempt() -> bool:
            with connected(self._options, TargetError) as client:
                return self._publish_once(client, claim, staged, rows, nbytes)

        # Asked again after a lost answer, the claim says whether the script has run.
        return self._retry.call(attempt, _is_passing)

    def _publish_once(
        self,
        client: Any,
        claim: HeldClaim,
        staged: Sequence[tuple[str, int]],
        rows: int,
        nbytes: int,
    ) -> bool:
        key = _claim_key(claim.identity)
        for _ in range(_TRIES):
            raw = client.get(key)
            current = _found(client, claim.identity, raw)
            published = claims.publish(current, claim, at=utc_text(), rows=rows, nbytes=nbytes)
            if published is None:
                self._forget(client, claim)
                return not claims.is_of_another_run(current, claim)
            # A type matters where a value is changed, not where it is replaced.
            changes = self._options.write_mode == "upsert" or self._options.hash_fields is not None
            changed = "hash" if self._options.hash_fields is not None else self._options.value_type
            kind = _TYPES.get(changed, "") if changes else ""
            bits, bit = _bit_of(claim.identity) or (key, "")
            keys = [key, bits, *(stage for stage, _ in staged)]
            items = [items for _, items in staged]
            values = [raw, _text(published), _kept_seconds(claim.identity), kind, bit, *items]
            answer = client.eval(_PUBLISH, len(keys), *keys, *values)
            word = answer[0].decode()
            if word == "done":
                self._forget(client, claim)
                return True
            if word != "claim":
                raise CommitError(
                    f"{self._options.address}: {_why(word, answer[1])}. Nothing was published"
                )
        raise CommitError(
            f"{self._options.address}: the claim of {claim.identity.shown} changes all the time; run again"
        )

    def _forget(self, client: Any, claim: HeldClaim) -> None:
        try:
            self._remove(client, claim.identity, claim.epoch)
        except redis.RedisError as error:
            _log.warning("what job %s staged stays for 7 days: %s", claim.owner, error)

    def kept(self) -> list[KeptClaim]:
        """What the server has of earlier writes with this prefix, the newest last. Looks at the names of all keys."""
        now, claims_found = utc_text(), []
        named: dict[tuple[str, int], str] = {}
        with self._connected() as client:
            keys = list(client.scan_iter(match=f"{_NAMES}:claim:*", count=PAGE))
            for start in range(0, len(keys), PAGE):
                some = keys[start : start + PAGE]
                for key, raw in zip(some, client.mget(some), strict=True):
                    claim = _parsed(raw)
                    if claim is None or claim.identity.target != self.target:
                        continue
                    kept_claim = kept_of(claim, key.decode(), now)
                    claims_found.append(kept_claim)
                    for version in numbers(kept_claim.versions):
                        named[kept_claim.name, version] = kept_claim.at
            for key in client.scan_iter(match=f"{_NAMES}:versions:*", count=PAGE):
                target, name, number = _bits_named(key)
                if target == self.target:
                    start = number * _PER_KEY
                    bits = ranges_of_bits(_bits_in(client.get(key)), start)
                    versions_of_key = joined(
                        (v, v) for v in range(start, start + _PER_KEY) if (name, v) in named
                    )
                    if versions := without(bits, versions_of_key):
                        claims_found.append(KeptClaim("txn", name, versions, key=key.decode()))
        return sorted(claims_found, key=lambda claim: claim.at)

    def forget(self, chosen: Sequence[KeptClaim]) -> list[KeptClaim]:
        """Forget claims as `kept` gave them. Returns those that were still there, and that no run holds."""
        with self._connected() as client:
            return [claim for claim in chosen if self._forget_one(client, claim)]

    def _forget_one(self, client: Any, chosen: KeptClaim) -> bool:
        is_shared = chosen.key.startswith(f"{_NAMES}:versions:")
        places = {
            claim_bit[0]
            for version in numbers(chosen.versions)
            if (claim_bit := _bit_of(Identity(self.target, "txn", chosen.name, version)))
        }
        for _ in range(_TRIES):
            with client.pipeline(transaction=True) as pipeline:
                pipeline.watch(chosen.key, *places)
                shared = {key: _bits_in(pipeline.get(key)) for key in places}
                claim = None if is_shared else _parsed(pipeline.get(chosen.key))
                if not is_shared and (
                    claim is None or kept_of(claim, chosen.key, utc_text()).is_held
                ):
                    return False
                pipeline.multi()
                if claim is not None:
                    pipeline.delete(chosen.key)
                for key, bits in shared.items():
                    start = _bits_named(key.encode())[2] * _PER_KEY
                    bits_left = without_bits(bits, chosen.versions, start, _PER_KEY)
                    pipeline.set(key, _bytes_of(bits_left))
                try:
                    pipeline.execute()
                except redis.WatchError:
                    continue
                return True
        return False

    def release(self, claim: HeldClaim) -> None:
        """Give the claim back, unless the write was published, and remove what was staged."""
        with self._connected() as client:
            self._change(client, claim.identity, lambda current: claims.release(current, claim))
            self._remove(client, claim.identity, claim.epoch)

    def _remove(self, client: Any, identity: Identity, epoch: int) -> None:
        index = _index_key(identity, epoch)
        stages = list(client.smembers(index))
        for start in range(0, len(stages), 100):
            client.unlink(*stages[start : start + 100])
        client.unlink(index)


class Stage:
    """What one attempt stages. Removed by the run's end, by the run that takes over, or by its age."""

    def __init__(
        self, options: RedisWriteOptions, client: Any, claim: HeldClaim, name: str
    ) -> None:
        self._options, self._client = options, client
        self.key = f"{_NAMES}:stage:{claim.identity.key[:32]}:{claim.epoch}:{name}"
        self._index = _index_key(claim.identity, claim.epoch)
        self._retry = Retry(options.retry_timeout, what=f"staging in {options.address}")
        self.items = 0

    def add(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        with explained(self._options, TargetError):
            answers = self._retry.call(lambda: self._added(commands), is_busy)
        self.items += len(commands)
        if answers[0] != self.items:
            raise TargetError(
                f"{self._options.address}: {self.key} has {answers[0]} items, "
                f"and this task staged {self.items}: staged items were removed, "
                "by another run that took over or by the server's 'maxmemory-policy'"
            )

    def _added(self, commands: Sequence[Command]) -> list[Any]:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(self.key, *map(packed, commands))
            pipeline.expire(self.key, _STAGED_SECONDS)
            pipeline.sadd(self._index, self.key)
            pipeline.expire(self._index, _STAGED_SECONDS)
            answers: list[Any] = pipeline.execute()
        return answers

    def remove(self) -> None:
        with explained(self._options, TargetError):
            self._client.unlink(self.key)


def _why(word: str, key: bytes) -> str:
    key_text = key.decode(errors="replace")
    if word == "denied":
        return f"the user may not run {key_text!r}; check the user's ACL"
    if word == "type":
        return (
            f"key {key_text!r} holds a value of another type; remove it, or use writeMode=replace"
        )
    return (
        f"the rows that a task staged in {key_text!r} no longer exist: "
        "they were removed by the server's 'maxmemory-policy', or are older than 7 days"
    )


def _is_passing(error: Exception) -> bool:
    cause = error.__cause__
    return isinstance(cause, Exception) and is_passing(cause)


def _claim_key(identity: Identity) -> str:
    return f"{_NAMES}:claim:{identity.key}"


def _kept_seconds(identity: Identity) -> str:
    """A version stays published by its bit: for this time its claim says who published it, and when."""
    return "" if identity.kind == "stream" else str(_JOB_SECONDS)


def _bit_of(identity: Identity) -> tuple[str, int] | None:
    """(the key of published versions, the bit of this one); None: it is not a version."""
    if identity.kind != "txn" or identity.version is None:
        return None
    number, bit = divmod(identity.version, _PER_KEY)
    named = json.dumps([identity.target, identity.name, number], separators=(",", ":"))
    return f"{_NAMES}:versions:{named}", bit


def _bits_named(key: bytes) -> tuple[str, str, int]:
    """(the target, the name of the transaction id, the number of its key)."""
    try:
        target, name, number = json.loads(key.decode().removeprefix(f"{_NAMES}:versions:"))
        return str(target), str(name), int(number)
    except (ValueError, TypeError):
        return "", "", 0  # another program's


def _bits_in(raw: bytes | None) -> int:
    """The server's first bit is the highest of the first byte."""
    reversed_bytes = bytes(_REVERSED[byte] for byte in raw or b"")
    return int.from_bytes(reversed_bytes, "little")


def _bytes_of(bits: int) -> bytes:
    plain = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return bytes(_REVERSED[byte] for byte in plain)


def _found(client: Any, identity: Identity, raw: bytes | None) -> Claim | None:
    """The claim, also of a version that only its bit says to be published."""
    claim, bit = _parsed(raw), _bit_of(identity)
    if claim is not None or bit is None or not _bits_in(client.get(bit[0])) >> bit[1] & 1:
        return claim
    return Claim(identity, "", state="published", published_at="an unknown time")


def _index_key(identity: Identity, epoch: int) -> str:
    return f"{_NAMES}:stages:{identity.key[:32]}:{epoch}"


def _text(claim: Claim) -> str:
    return json.dumps(asdict(claim), sort_keys=True)


def _parsed(raw: bytes | None) -> Claim | None:
    if raw is None:
        return None
    data = json.loads(raw)
    return replace(Claim(**data), identity=Identity(**data["identity"]))
