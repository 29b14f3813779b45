"""Every environment variable and hint, once: docs/environment.md is written from this file.

    python tests/tools/settings.py [--write]

`make test-docs` compares the variables with those that the sources read, Rust, Python and C++
alike, and the page with what this file gives. Without `--write` the page is printed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "environment.md"


@dataclass(frozen=True)
class Setting:
    """A row: names that belong together, what they mean, and the other columns of their table."""

    names: tuple[str, ...]
    meaning: str
    more: str | None = None


OWN: tuple[Setting, ...] = (
    Setting(
        ("FERROCOMM_HOST_TRANSPORT",),
        (
            "what carries data: `shm` (shared memory, so that ranks on another machine are "
            "refused), `tcp`, or `auto`. The same on every rank"
        ),
        "`auto`: shared memory within a machine, TCP between machines",
    ),
    Setting(
        ("FERROCOMM_TCP_STREAMS",),
        (
            "how many connections carry messages of 1 MB and more from a process to another one: "
            "1 to 16, or `auto`. They are opened with the first such message"
        ),
        "`auto`: 4 between machines, 1 within one",
    ),
    Setting(
        ("FERROCOMM_DIRECT_READS",),
        (
            "whether ranks of one machine read large buffers in one another's memory "
            "(`process_vm_readv`), where the kernel allows it: `off`, `on` (from 24 KB on), or "
            "`auto` (from the length on from which it was measured to be faster, if there is "
            "one). One rank that has it off turns it off for its communicators; between the "
            "others, the first rank of each decides"
        ),
        "`auto`",
    ),
    Setting(
        ("FERROCOMM_COPY_KERNELS",),
        (
            "how ranks of one machine copy through shared memory, and what "
            "`FERROCOMM_DIRECT_READS=auto` means: `auto`, or `default`, which measures nothing: "
            "stores go past the caches from 2 KB on, and no rank reads another's memory. `auto` "
            "measures once per machine and boot, for at most about 100 ms, when the first rank of"
            " a communicator runs its first collective and has a processor for each rank; the "
            "result is kept in `ferrocomm/copy-kernels` in the folder for caches. The first rank "
            "decides for all"
        ),
        "`auto`",
    ),
    Setting(
        (
            "XDG_CACHE_HOME",
            "HOME",
        ),
        (
            "the folder for caches: `$XDG_CACHE_HOME`, or else `$HOME/.cache`. Where it cannot be"
            " written, each process measures for itself"
        ),
        "nothing is kept",
    ),
    Setting(
        ("FERROCOMM_SIMD",),
        (
            "the vector instructions that reductions use: `scalar` (what every processor of the "
            "architecture has), `avx2`, `avx512`, or `auto`. Results have the same bits with each"
        ),
        "`auto`: the best this processor has",
    ),
    Setting(
        ("FERROCOMM_INTERFACE",),
        (
            "network interfaces to be reached at: `eth0,eth1`, best first, or `^lo,docker` for "
            "any but those. A name also stands for all that begin with it"
        ),
        "the interface that leads to `MASTER_ADDR`",
    ),
    Setting(
        ("FERROCOMM_HOST_ID",),
        (
            "what this process takes for its machine. Processes with different values treat each "
            "other as on different machines; for tests"
        ),
        "the kernel's boot and network namespace",
    ),
    Setting(
        ("FERROCOMM_LOCATION",),
        (
            "where this machine stands: one to three names, the largest place first, as in "
            "`zone-a/rack-7`. Machines of one place are neighbours in rings and in the exchanges "
            "of large collectives"
        ),
        "machines are neighbours as their first ranks are",
    ),
    Setting(
        ("FERROCOMM_RECORDER_ENTRIES",),
        "operations that the flight recorder of a process keeps; `0` turns it off",
        "2048",
    ),
    Setting(
        (
            "TORCHCOMM_RANK",
            "TORCHCOMM_SIZE",
        ),
        "rank and number of ranks for `new_comm`; both or none. They overrule the launcher's",
        "the launcher's",
    ),
    Setting(
        ("TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD",),
        (
            "which launcher's variables to read: `torchrun`, `mpi`, `pals`, or `auto`, which "
            "takes the first that is there"
        ),
        "`auto`",
    ),
    Setting(
        ("TORCHCOMM_TIMEOUT_SECONDS",),
        "default time-out of communicators made by `new_comm` without one",
        "600",
    ),
    Setting(
        ("FERROCOMM_NCCL_LIB",),
        "the file to load NCCL from. No other place is tried when it is set",
        (
            "a copy that the process has mapped, such as torch's; else the wheel's; else "
            "`libnccl.so.2` on the loader's path"
        ),
    ),
    Setting(
        ("TORCHCOMM_ABORT_ON_ERROR",),
        (
            "whether a time-out or an error that an `nccl` group cannot get over ends the "
            "process, for `new_comm` without `abort_process_on_timeout_or_error`: `0`, `1`, "
            "`true` or `false`. The host engine never ends a process"
        ),
        "`1`",
    ),
    Setting(
        ("TORCHCOMMS_PATCH_FOR_COMPILE",),
        (
            "whether the methods of `TorchComm` can be compiled by `torch.compile`: `0`, `1`, "
            "`true` or `false`; see [functional collectives](functional.md)"
        ),
        "`0`",
    ),
    Setting(
        ("TORCHCOMM_FR_DUMP_TEMP_FILE",),
        (
            "where `FlightRecorderHook.dump_file(rank)` writes; the rank is appended. A process "
            "that a failure ends writes its flight recorder there, too, when it is set"
        ),
        "`torchcomm_fr_rank_` in the current folder",
    ),
)

OTHERS: tuple[Setting, ...] = (
    Setting(
        ("TORCH_DISTRIBUTED_USE_TORCHCOMMS",),
        "read by torch: `1` is the same as `torch.distributed.config.use_torchcomms = True`",
    ),
    Setting(
        (
            "RANK",
            "WORLD_SIZE",
        ),
        "rank and number of ranks (torchrun)",
    ),
    Setting(
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
        ),
        "the same (Open MPI)",
    ),
    Setting(
        (
            "PMI_RANK",
            "PMI_SIZE",
        ),
        "the same (MPICH and others)",
    ),
    Setting(
        ("PALS_RANKID",),
        "the rank; the size is `PMI_SIZE` (PALS)",
    ),
    Setting(
        (
            "MASTER_ADDR",
            "MASTER_PORT",
        ),
        (
            "where the ranks meet when `new_comm` gets no store. The engine also takes "
            "`MASTER_ADDR` to find the interface that leads to the other ranks"
        ),
    ),
    Setting(
        ("LOCAL_WORLD_SIZE",),
        (
            "whether all ranks are on this machine: only then may its address be loopback. With "
            "`LOCAL_RANK`, how many ranks join together from this machine (a hint; wrong, it "
            "costs requests of the store and no more)"
        ),
    ),
    Setting(
        ("LOCAL_RANK",),
        (
            "the number of this rank on its machine: ranks that are not placed one machine after "
            "the other join each for itself"
        ),
    ),
    Setting(
        (
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ),
        "the same (Open MPI)",
    ),
    Setting(
        (
            "MPI_LOCALNRANKS",
            "MPI_LOCALRANKID",
        ),
        "the same (MPICH)",
    ),
    Setting(
        (
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_LOCALID",
        ),
        "the same, when they are this group's rank and size (SLURM)",
    ),
    Setting(
        ("TORCHELASTIC_RESTART_COUNT",),
        "a key space per restart, so that ranks do not meet those of the attempt before",
    ),
    Setting(
        ("TORCHELASTIC_RUN_ID",),
        (
            "tells jobs of one machine apart, together with `MASTER_ADDR` and `MASTER_PORT`, "
            "without which every rank joins for itself"
        ),
    ),
    Setting(
        ("TORCHELASTIC_USE_AGENT_STORE",),
        "whether torchrun's agent serves the store",
    ),
    Setting(
        (
            "GLOO_SOCKET_IFNAME",
            "NCCL_SOCKET_IFNAME",
        ),
        "the same as `FERROCOMM_INTERFACE`, when that is not set",
    ),
)

BUILDING: tuple[Setting, ...] = (
    Setting(
        ("FERROCOMM_INCLUDE_DIR",),
        "folder into which `ferrocomm.h` is written as well; `make header` sets it",
    ),
    Setting(
        ("CMAKE_BUILD_PARALLEL_LEVEL",),
        "files compiled at once; one that includes torch takes up to 2 GB. `make` sets 2",
    ),
    Setting(
        (
            "CC",
            "CXX",
            "PYTHON",
            "VENV",
        ),
        "compilers, the Python to start from, and the environment's folder, for `make`",
    ),
)

HINTS: tuple[Setting, ...] = (
    Setting(
        ("eager",),
        "`new_comm`, `fc_comm_create`, `split`, `reconfigure`",
        (
            "`true` and `1` connect to all ranks when the communicator is made or has new members, "
            "and not when data is first exchanged; `false` and `0` turn it off"
        ),
    ),
    Setting(
        ("share_memory",),
        (
            "`new_window`, `TorchCommWindow.tensor_register`; `new_comm`, `split`, `set_hints`, "
            "for all windows that are not told otherwise"
        ),
        (
            "`true` and `1` move the tensor's storage to memory that the ranks of this machine "
            "share, so that they write to it as fast as they copy; what else points to the old "
            "memory no longer sees the tensor. CPU tensors only"
        ),
    ),
)

NCCL_HINTS: tuple[Setting, ...] = (
    Setting(
        ("high_priority_stream",),
        ("the communicator's own stream, on which asynchronous operations run, goes before others"),
        "`false`",
    ),
    Setting(
        ("max_event_pool_size",),
        "CUDA events that are kept to be used again",
        "1000",
    ),
    Setting(
        ("blocking",),
        (
            "`false` makes NCCL start a thread for each call, which is then polled until its "
            "deadline. Otherwise a call may hold its thread, and where it does for longer than "
            "the operation's time-out, the communicator is given up under it"
        ),
        "`true`",
    ),
    Setting(
        ("abort_process_on_timeout_or_error",),
        "as the argument of `new_comm` of that name",
        "`false` for `fc_comm_create`",
    ),
    Setting(
        (
            "cga_cluster_size",
            "min_ctas",
            "max_ctas",
            "net_name",
            "split_share",
            "traffic_class",
            "comm_name",
            "collnet_enable",
            "cta_policy",
            "shrink_share",
            "nvls_ctas",
            "n_channels_per_net_peer",
            "nvlink_centric_sched",
        ),
        "the field of that name in NCCL's configuration, where the loaded NCCL has it",
        "NCCL's own choice",
    ),
)

PAGE_TEXT = """\
# Environment variables and hints

<!-- Written by tests/tools/settings.py from its tables: change them there, then `make docs`. -->

`TORCHCOMMS_PATCH_FOR_COMPILE` is read at import, and no other. Those that begin with `FERROCOMM`
are read when a process makes its first communicator, the others when one is made. A wrong value is
an error that names variable and value; in `FERROCOMM_RECORDER_ENTRIES`, a warning in the log.

## Of Ferrocomm

{own}

## Of torch and launchers

{others}

## When building

{building}

## Hints

Hints are pairs of strings given to `new_comm(hints=...)`, to operations, and to
`fc_comm_options.hints`. A hint that the engine does not know has no effect; one of an operation is
named in the log, once. A known one with a value that it does not have is an error.

{hints}

The `nccl` engine understands these, in snake case and in camel case, and logs another one once:

{nccl_hints}
"""


def variables() -> set[str]:
    """All environment variables."""
    return {name for row in (*OWN, *OTHERS, *BUILDING) for name in row.names}


def page() -> str:
    """The page."""
    return PAGE_TEXT.format(
        own=table(("variable", "meaning", "without it"), OWN),
        others=table(("variable", "read for"), OTHERS),
        building=table(("variable", "meaning"), BUILDING),
        hints=table(("hint", "given to", "meaning"), HINTS),
        nccl_hints=table(("hint", "meaning", "without it"), NCCL_HINTS),
    )


def table(titles: tuple[str, ...], rows: tuple[Setting, ...]) -> str:
    """The rows as a table of Markdown."""
    lines = [titles, ("---",) * len(titles)]
    for row in rows:
        cells = [", ".join(f"`{name}`" for name in row.names), row.meaning]
        lines.append((*cells, *([] if row.more is None else [row.more])))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Returns the exit code."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    elif sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
