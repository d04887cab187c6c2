"""The strategies that there are, as facts: what configuration, search and words need to know of each.

To add one, write its row here and its module `planner/strategies/NAME.py`, with the function that `proposes` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holmes_hpc.values.schedule_kinds import AUTO, ONE_F_ONE_B

__all__ = ["AUTO", "STRATEGY_KINDS", "Proposes", "StrategyKind", "present_name", "strategy_kind"]

COMPARE_ALL_HELP = "the fastest of all that follow but manual"


class Proposes(StrEnum):
    """The function of a strategy's module.

    `shapes(task, tensor)` says which ranks form which stage, for a tensor-parallel degree; the planner cuts the layers.
    `proposals(task)` returns layouts with degrees and layers of its own choice, without chunks. `pipelines(task)` reads
    the one layout that `parallel.pipelines` writes down.
    """

    SHAPES = "shapes"
    PROPOSALS = "proposals"
    PIPELINES = "pipelines"


@dataclass(frozen=True)
class StrategyKind:
    """One strategy: its name, a line of help, how it proposes, and how the planner treats it.

    With `one_network` all groups of a layout use the fastest network that all nodes share. `overlaps`: by default sums
    of gradients run under the backward. `changed`: small changes to its layouts are tried. `tries_recomputation`: it
    looks at recomputation itself, where that is left open. At most `most_simulated` of its layouts are simulated for a
    tensor-parallel degree. `in_megatron`: Megatron-LM may be able to run its layouts; `divides_by_data`: those with
    `parallel.data` set sooner than others. `defaults` are planner settings that it takes where they are left open and
    it is one of several; `conf/parallel/NAME.yaml` says the same for a run of it alone.
    """

    name: str
    help: str
    proposes: Proposes = Proposes.SHAPES
    one_network: bool = False
    overlaps: bool = True
    changed: bool = False
    tries_recomputation: bool = False
    most_simulated: int = 8
    in_megatron: bool = False
    divides_by_data: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()

    @property
    def is_written(self) -> bool:
        """Whether the user writes its layout, so that there is nothing to search and nothing to compare."""
        return self.proposes is Proposes.PIPELINES

    @property
    def cuts_layers(self) -> bool:
        """Whether it chooses tensor-parallel degrees and layers itself."""
        return self.proposes is Proposes.PROPOSALS


HOLMES = StrategyKind("holmes", "pipelines through all fabrics, data parallelism inside one", changed=True,
                      in_megatron=True, divides_by_data=True)
MEGATRON = StrategyKind("megatron", "the baseline: Megatron's groups, one network for all, even layers, no overlap",
                        one_network=True, overlaps=False, in_megatron=True,
                        defaults=(("layer_split", "uniform"), ("warmup_extra", 0), ("schedule", ONE_F_ONE_B),
                                  ("turns", False)))
FLASHFLEX = StrategyKind("flashflex", "unlike GPUs: a hierarchical partition into pipelines, then stages",
                         Proposes.PROPOSALS, changed=True)
UNLIKE = StrategyKind("unlike", "our search for unlike pipelines: templates, a knapsack, shared stages",
                      Proposes.PROPOSALS, changed=True, tries_recomputation=True, most_simulated=40)
MANUAL = StrategyKind("manual", "as parallel.pipelines says", Proposes.PIPELINES)

STRATEGY_KINDS: Mapping[str, StrategyKind] = {
    kind.name: kind for kind in (HOLMES, MEGATRON, FLASHFLEX, UNLIKE, MANUAL)}

_FORMER_NAMES = {AUTO: UNLIKE.name}
"""What plans of older versions call a layout of our search for unlike pipelines."""


def strategy_kind(name: str) -> StrategyKind:
    """Return the strategy of a name; one that is not in the table is a plug-in's, which proposes shapes."""
    return STRATEGY_KINDS.get(name) or StrategyKind(name, "added by a plug-in")


def present_name(name: str) -> str:
    """Return what the strategy of a plan is called now, of any version."""
    return _FORMER_NAMES.get(name, name)
