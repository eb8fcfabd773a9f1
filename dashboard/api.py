"""The dashboard's state as JSON. Version 1: fields may be added, never changed.

Every answer says on what its figures rest (`basis`) and when they were seen (`observed_at`, unix seconds).
"""

from __future__ import annotations

from typing import Any

from dashboard.state import DashboardState, PeerRow

SCHEMA = 1
BASIS = "reported"
"""Peers say so themselves; nobody has checked it."""


def run_json(state: DashboardState) -> dict[str, Any]:
    """`/api/v1/run`: the run, its swarm and the loss curve."""
    run = state.run
    return _head(state) | {
        "phase": state.phase,
        "name": run.name if run else None,
        "description": run.description if run else None,
        "revision": run.revision if run else None,
        "manifest_hash": run.manifest_hash.hex() if run else None,
        "watching_since": state.started_at,
        "num_peers": len(state.here),
        "num_trainers": len(state.trainers),
        "num_rounds": state.num_rounds,
        "committed_tokens": state.committed_tokens,
        "tokens_per_second": state.tokens_per_second,
        "held_out_loss": state.held_out_loss,
        "train_loss": state.train_loss,
        "losses": [
            {
                "at": point.at,
                "committed_tokens": point.tokens,
                "held_out_loss": point.held_out_loss,
                "train_loss": point.train_loss,
                "num_trainers": point.num_trainers,
                "tokens_per_second": point.tokens_per_second,
            }
            for point in state.points
        ],
    }


def peers_json(state: DashboardState) -> dict[str, Any]:
    """`/api/v1/peers`: everyone seen since this dashboard began to watch, without addresses."""
    return _head(state) | {
        "num_unlisted": state.num_unlisted,
        "num_invalid_records": state.num_invalid_records,
        "peers": [_peer_json(row) for row in state.peers],
    }


def rounds_json(state: DashboardState) -> dict[str, Any]:
    """`/api/v1/rounds`: where each fragment stands, and the newest rounds."""
    return _head(state) | {
        "fragments": [
            {
                "fragment": row.fragment,
                "version": row.version,
                "committed_tokens": row.lineage_tokens,
                "num_peers": row.num_peers,
                "num_current": row.num_current,
                "largest_lag": row.largest_lag,
                "num_forked": row.num_forked,
            }
            for row in state.fragments
        ],
        "rounds": [
            {
                "fragment": row.fragment,
                "version": row.version,
                "seen_at": row.seen_at,
                "num_rounds": row.num_rounds,
                "source": "commit record" if row.leader else "peer records",
                "leader": row.leader,
                "tokens": row.tokens,
                "contributors": list(row.contributors) if row.leader else None,
                "num_void_shards": row.num_void_shards if row.leader else None,
            }
            for row in state.rounds
        ],
    }


def _head(state: DashboardState) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "basis": BASIS,
        "run_id": state.run_id,
        "observed_at": state.now,
        "heard_at": state.heard_at,
        "problem": state.problem or None,
    }


def _peer_json(row: PeerRow) -> dict[str, Any]:
    record = row.record
    return {
        "peer_id": record.peer_id,
        "name": record.name or None,
        "condition": row.condition,
        "state": record.state,
        "role": record.role,
        "same_manifest": row.same_manifest,
        "device": record.device,
        "software": record.software,
        "reachable": record.reachable,
        "inner_steps": record.inner_steps,
        "tokens": record.tokens,
        "rounds_contributed": record.rounds_contributed,
        "tokens_per_second": record.tokens_per_second,
        "upload_bits_per_second": record.upload_bits_per_second,
        "download_bits_per_second": record.download_bits_per_second,
        "train_loss": record.train_loss,
        "held_out_loss": record.held_out_loss,
        "versions": list(record.versions),
        "started_at": record.started_at,
        "first_heard_at": row.first_heard_at,
        "heard_at": row.heard_at,
    }
