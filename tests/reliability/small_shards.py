"""Named by an ``env_id`` in processes of their own: replay in shards so small that a short run
fills many.
"""

from __future__ import annotations

from rl_training.data import transition_ring

transition_ring._SHARD_TRANSITIONS = 128
