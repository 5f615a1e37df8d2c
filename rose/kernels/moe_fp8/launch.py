"""Launches of the fused experts: pure functions of shapes. Measured on an H200; see docs/performance-log.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupedGemmLaunch:
    """Tiles of tile_m x tile_n x tile_k; tiles run M-fastest within groups of `group_n` columns."""

    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    group_n: int
    flatten: bool = True


def grouped_gemm_launch(num_pairs: int, num_experts: int) -> GroupedGemmLaunch:
    """Tall tiles where experts have rows to fill them; they are padded to a multiple of tile_m each."""
    rows = num_pairs / num_experts
    if rows > 96:
        return GroupedGemmLaunch(128, 256, 128, 8, 3, 4)
    return GroupedGemmLaunch(64, 256, 128, 4, 3, 4)
