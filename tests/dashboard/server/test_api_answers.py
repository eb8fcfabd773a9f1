"""The API over HTTP: its description, wrong queries, proofs, metrics, and who is hidden."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dashboard.history.history import History
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.server.api_queries import MAX_PAGE, PREFIX, openapi
from dashboard.server.api_routes import ENDPOINTS
from dashboard.server.live_updates import Live
from tests.kit.dashboard.history import usual_commit
from tests.kit.dashboard.records import NOW, PEERS, profile_of, record_of
from tests.kit.dashboard.serving import ADA, IDS, NUM_ROUNDS, Client, in_site, until_tick

SCHEMAS = openapi(ENDPOINTS)["components"]["schemas"]
PLAIN = {"number": (int, float), "integer": (int,), "string": (str,), "boolean": (bool,), "null": (type(None),)}


def complaints(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """Where an answer differs from its description, a JSON schema."""
    if "$ref" in schema:
        return complaints(value, SCHEMAS[schema["$ref"].removeprefix("#/components/schemas/")], where)
    if "anyOf" in schema:
        tries = [complaints(value, choice, where) for choice in schema["anyOf"]]
        return min(tries, key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}, none of {schema['enum']}"]
    if schema["type"] == "array":
        if not isinstance(value, list):
            return [f"{where} is no list"]
        kinds = schema.get("prefixItems", [schema["items"]] * len(value) if "items" in schema else [])
        return [
            text
            for index, (item, kind) in enumerate(zip(value, kinds, strict=True))
            for text in complaints(item, kind, f"{where}[{index}]")
        ]
    if "additionalProperties" in schema and "properties" not in schema:
        kind = schema["additionalProperties"]
        return [text for name, item in value.items() for text in complaints(item, kind, f"{where}.{name}")]
    if schema["type"] == "object":
        fields = schema["properties"]
        assert set(fields) == set(schema["required"])
        if not isinstance(value, dict) or set(value) != set(fields):
            return [f"{where} has other fields than {sorted(fields)}: {value}"]
        return [text for name, kind in fields.items() for text in complaints(value[name], kind, f"{where}.{name}")]
    is_right = isinstance(value, PLAIN[schema["type"]]) and (schema["type"] == "boolean") == isinstance(value, bool)
    return [] if is_right else [f"{where} is {value!r}, not {schema['type']}"]


def test_every_answer_is_as_described(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        for endpoint in ENDPOINTS:
            path = PREFIX + endpoint.path.replace("{id}", IDS[1])
            response = await client.get(path)
            assert response.status == 200, path
            assert response.content_type == endpoint.media_type
            body = await response.text()
            if endpoint.answer is not None:
                answer = json.loads(body)
                assert not complaints(answer, SCHEMAS[endpoint.answer.__name__], endpoint.name)
                # A description of empty lists proves little.
                empty = [name for name, value in answer.items() if value == []]
                may_be_empty = {"gaps", "join_addresses", "addresses", "notes"}
                assert set(empty) <= may_be_empty, path
        assert json.loads(await (await client.get("/api/v1/openapi.json")).text()) == openapi(ENDPOINTS)

    in_site(tmp_path, check)


def test_the_description_is_closed() -> None:
    document = openapi(ENDPOINTS)
    known = set(document["components"]["schemas"])
    used = set(re.findall(r'#/components/schemas/(\w+)"', json.dumps(document)))
    assert used == known
    assert all(path.startswith("/api/v1/") for path in document["paths"])


def test_what_does_not_fit_its_description_is_noticed() -> None:
    gap = SCHEMAS["Gap"]
    assert complaints({"begin_at": None, "end_at": 1.0, "reason": ""}, gap, "x")
    assert complaints({"begin_at": 0.0}, gap, "x")
    assert complaints({"begin_at": 0.0, "end_at": True, "reason": ""}, gap, "x")
    assert complaints([{"begin_at": 0.0, "end_at": 1.0, "reason": ""}], gap, "x")
    assert not complaints({"begin_at": 0.0, "end_at": 1.0, "reason": ""}, gap, "x")
    assert complaints({"gaps": [{"begin_at": 3}]}, SCHEMAS["Run"], "x")


WRONG = [
    ("rounds?limit=x", "limit is 'x'; expected a whole number from 1 to 500"),
    (f"rounds?limit={MAX_PAGE + 1}", "expected a whole number from 1 to 500"),
    ("rounds?limit=0", "expected a whole number from 1"),
    ("rounds?limit=-1", "limit is '-1'"),
    ("rounds?limit=%D9%A3", "limit is '\\u0663'"),
    ("rounds?before=99999999999999999999999", "before is"),
    ("rounds?foo=1", "unknown parameter 'foo'; expected limit, before"),
    ("run?x=1", "unknown parameter 'x'; expected no parameters"),
    ("contributors?limit=5&limit=6", "limit was given twice"),
    ("contributors?sort=evil", "sort is 'evil'; expected one of tokens, reported"),
    ("contributors?search=" + "a" * 81, "search has 81 characters; expected at most 80"),
    ("contributors?offset=1e9", "offset is '1e9'"),
    ("points?max=1", "expected a whole number from 2 to 5000"),
    ("points?x=loss", "expected one of time, tokens, rounds"),
]


def test_wrong_queries_say_what_was_got_and_what_is_expected(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        for query, sentence in WRONG:
            response = await client.get(f"/api/v1/{query}")
            assert (response.status, response.content_type) == (400, "application/problem+json"), query
            problem = await response.json()
            assert not complaints(problem, SCHEMAS["Problem"], query)
            assert sentence in problem["detail"], query
        for path in (
            "contributors/nobody0",
            "contributors/" + "1" * 200,
            "contributors/%2e%2e",
            f"contributors/{IDS[0]}x",
        ):
            response = await client.get(f"/api/v1/{path}")
            assert response.status == 404, path
            assert not complaints(await response.json(), SCHEMAS["Problem"], path)

    in_site(tmp_path, check)


def test_pages_of_rounds_and_contributors_join_up(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        versions: list[int] = []
        before = ""
        while True:
            answer = await (await client.get(f"/api/v1/rounds?limit=40{before}")).json()
            versions += [row["version"] for row in answer["rounds"]]
            if answer["next_before"] is None:
                break
            before = f"&before={answer['next_before']}"
        assert versions == list(range(NUM_ROUNDS, 0, -1))
        ids: list[str] = []
        offset: int | None = 0
        while offset is not None:
            answer = await (await client.get(f"/api/v1/contributors?limit=3&offset={offset}")).json()
            ids += [row["contributor_id"] for row in answer["contributors"]]
            offset = answer["next_offset"]
        assert ids == [IDS[index] for index in (3, 2, 1, 0)]
        found = await (await client.get(f"/api/v1/contributors?search={IDS[2][-12:].upper()}")).json()
        assert [row["contributor_id"] for row in found["contributors"]] == [IDS[2]]
        oldest = await (await client.get("/api/v1/contributors?sort=reported&limit=1")).json()
        assert oldest["contributors"][0]["contributor_id"] == IDS[3]

    in_site(tmp_path, check)


def test_other_pages_may_read_a_public_one_and_not_write(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        assert (await client.get("/api/v1/run")).headers["Access-Control-Allow-Origin"] == "*"
        preflight = await client.options("/api/v1/run")
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Methods"] == "GET, HEAD"
        assert (await client.post("/api/v1/run")).status == 405
        assert "Access-Control-Allow-Origin" not in (await client.get("/")).headers

    in_site(tmp_path, check)


def test_columns_are_ready_for_a_chart(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        for axis in ("time", "tokens", "rounds"):
            answer = await (await client.get(f"/api/v1/points?x={axis}&max=100")).json()
            assert answer["names"][0] == axis
            assert len(answer["names"]) == len(answer["columns"]) == len(set(answer["names"]))
            assert len({len(column) for column in answer["columns"]}) == 1
            along = answer["columns"][0]
            assert along == sorted(set(along))
            assert along

    in_site(tmp_path, check)


def test_a_proof_has_every_signed_commit(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        proof = (await (await client.get(f"/api/v1/contributors/{IDS[3]}/proof")).text()).splitlines()
        assert [bytes.fromhex(json.loads(line)["commit"]) for line in proof] == [
            usual_commit(version, IDS) for version in range(NUM_ROUNDS)
        ]

    in_site(tmp_path, check)


SECRET = "Zebulon"


def test_who_hides_is_nowhere(tmp_path: Path) -> None:
    shown = profile_of(ADA.peer_id, IDS[0], name=SECRET, team=f"{SECRET}'s")

    async def everything(client: Client, live: Live) -> str:
        parts = []
        paths = [PREFIX + endpoint.path.replace("{id}", IDS[0]) for endpoint in ENDPOINTS]
        paths += ["/", "/metrics", f"/c/{IDS[0]}", f"/c/{ADA.peer_id}"]
        paths += [f"/c/{ADA.peer_id}/certificate", "/?tab=people", "/people?sort=name"]
        paths += [f"/api/v1/contributors?search={SECRET}"]
        for path in paths:
            response = await client.get(path)
            assert response.status == 200, path
            parts.append(f"{path}\n{await response.text()}")
        stream = await client.get("/events/stream")
        parts.append(await until_tick(stream))
        stream.close()
        return "\n".join(parts).replace(f"search={SECRET}", "")

    async def check(client: Client, live: Live, history: History) -> None:
        # The machines' own name says it too.
        named = [record_of(PEERS[0], sequence=5, now=NOW + 4, name=SECRET, contributor_key=ADA.public_key)]
        state = fold(live.state, Look(now=NOW + 4, num_members=3, records=named, withdrawn=history.withdrawn))
        history.look(state)
        live.publish(state, history.view)
        before = await everything(client, live)
        for part in ("/api/v1/contributors", f"/c/{ADA.peer_id}", "/api/v1/peers"):
            assert SECRET in before.partition(f"{part}\n")[2]
        assert SECRET not in before.partition("/metrics\n")[2].partition("/c/")[0]
        history.add_profile(replace(shown, sequence=2, is_hidden=True, name="", country="", team=""))
        state = fold(state, Look(now=NOW + 6, num_members=3, withdrawn=history.withdrawn))
        history.look(state)
        live.publish(state, history.view)
        after = await everything(client, live)
        assert SECRET not in after
        row = history.view.contributor(ADA.peer_id)
        assert row is not None
        assert row.tokens_witnessed == 100.0 * NUM_ROUNDS

    in_site(tmp_path, check, profile=shown)
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("run.sqlite"))


def test_metrics_are_metrics_and_name_nobody(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        await client.get("/api/v1/nothing")
        response = await client.get("/metrics")
        assert response.content_type == "text/plain"
        text = await response.text()
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples[("murmuration_peers", "here")] == 3
        assert samples[("murmuration_phase", "live")] == 1
        assert samples[("murmuration_committed_tokens_total",)] == live.state.view.committed_tokens > 0
        assert samples[("murmuration_contributors", "true")] == 3
        assert samples[("murmuration_witnessed_rounds_total",)] == NUM_ROUNDS
        assert samples[("murmuration_missing_rounds",)] == 7
        assert samples[("murmuration_dashboard_answers_total", "4xx")] == 1
        assert all(name[0].startswith("murmuration_") for name in samples)
        assert len(samples) < 60
        assert not any(peer_id in text or peer_id[-8:] in text for peer_id in IDS)
        assert "Ada" not in text

    in_site(tmp_path, check)
