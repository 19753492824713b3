"""Every error code with its meaning, the smallest example that raises it, and what mends it.

In: a code. Out: text. The one idea: a code is a promise, so that `tests/contracts/` compares this
table with the codes that the library raises; the rules of the verifier bring their own examples,
the laws of allocators the command that checks them. Read next: `errors.py`, `sched/rules/`.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from ooctrain.errors import ConfigError

WIDTH = 88
LAW_MEANING = (
    "What an allocator promises: P all of them, B best fit, V virtual addressing, S those that "
    "plan ahead. A failure shows the smallest list of requests that breaks it. Read next: "
    "docs/allocators.md."
)


class Explanation(NamedTuple):
    """What a code means.

    Args:
        title: in a few words.
        meaning: in a few sentences.
        example: the smallest thing that raises it.
        fix: what mends it.
    """

    title: str
    meaning: str
    example: str
    fix: str


CODES: Mapping[str, Explanation] = {
    "OOC-000": Explanation(
        "an error of the library",
        "The root of all errors that are raised on purpose; none is raised with this code itself.",
        "try: ...\nexcept oc.OoctrainError as error: print(error.code)",
        "catch this class to catch every error of the library",
    ),
    "OOC-100": Explanation(
        "a wrong argument",
        "An argument, an option or a combination of them has no meaning.",
        "oc.data.DataLoader(oc.data.digits(), batch_size=0)",
        "the message names the argument and what it may be",
    ),
    "OOC-101": Explanation(
        "not a size",
        "A size or budget is bytes, or a number with B, KB, MB, GB (powers of 1000) or KiB,"
        " MiB, GiB (powers of 1024); a budget may also be a percentage from 0% to 100%.",
        "ooctrain plan lenet --budget 8G",
        "write 8GB or 8GiB",
    ),
    "OOC-102": Explanation(
        "a size out of range",
        "A size must be positive and below 2**62 bytes.",
        "ooctrain plan lenet --budget 0",
        "`ooctrain plan MODEL` prints the smallest budget that fits",
    ),
    "OOC-103": Explanation(
        "a broken trace",
        "A trace is a list of calls over variables that are written once, before they are "
        "read. This one breaks that.",
        "two calls of a TraceBuilder that write the same variable",
        "the message names the call and the variable",
    ),
    "OOC-104": Explanation(
        "not a plan file",
        "The file is not JSON of a plan, or of a version that this library does not know.",
        "oc.load_plan('README.md', trace)",
        "write it again with `ooctrain plan MODEL --save FILE`",
    ),
    "OOC-105": Explanation(
        "no such machine, or impossible numbers",
        "A machine is named by a preset, a calibration file, or given as `oc.Machine` with "
        "positive rates; planners refuse parameters out of range with the same code.",
        "ooctrain plan lenet --machine v100-pci",
        "the message lists the presets, and suggests the nearest",
    ),
    "OOC-106": Explanation(
        "an unknown name",
        "No planner, allocator, data set or model has that name, or it does not know that "
        "parameter.",
        "ooctrain plan lenet --planner windwo",
        "the message lists the names, and suggests the nearest; your own: file.py:Class",
    ),
    "OOC-107": Explanation(
        "an allocator parameter out of range",
        "The chunk of the virtual-addressing allocator must be a multiple of the page and "
        "no larger than the budget, which must not need more mappings than the system "
        "allows.",
        "ooctrain train lenet --allocator va:chunk=3000",
        "a multiple of the page such as va:chunk=64KiB; for very large budgets a larger chunk",
    ),
    "OOC-108": Explanation(
        "something is lacking",
        "What is asked needs something that this allocator, recording or system does not have, or a"
        " planner, an allocator or an operation of your own lacks a part.",
        "va on a system without memfd",
        "the message says what is missing",
    ),
    "OOC-109": Explanation(
        "decisions that contradict the trace",
        "A planner decided that bytes leave the device in a gap that does not lie between "
        "two consecutive uses, or let a call read what it had dropped.",
        "a gap of x after the last call that reads x",
        "take gaps from `possible_gaps`, and run the producer of what was dropped again",
    ),
    "OOC-110": Explanation(
        "shapes or types that do not fit",
        "An operation got shapes or element types that it cannot take. The message names "
        "the operation, the shapes it got and the ones it needs.",
        "oc.nn.Linear(10, 2)(oc.tensor(np.zeros((4, 9), np.float32)))",
        "compare the last extent of the input with the layer's own",
    ),
    "OOC-111": Explanation(
        "labels that are none",
        "Labels of a cross-entropy are whole numbers from 0 to classes - 1, one for each "
        "sample or pixel.",
        "labels 0 to 10 for a network with 10 classes",
        "count the classes of the data; build the model with that many",
    ),
    "OOC-112": Explanation(
        "a state that does not fit the model",
        "The names or shapes of a state_dict are not those of the model.",
        "resnet18.load_state_dict(resnet34.state_dict())",
        "load it into the model it was saved from",
    ),
    "OOC-113": Explanation(
        "what cannot be tiled",
        "A segment to tile is a chain of calls, each of which reads the image that the one "
        "before wrote: convolutions, poolings, paddings and pointwise operations. The "
        "message names the call that is none of these, or the fork, or what is wrong with "
        "the grid.",
        "oc.tile(trace, (2, 2), first='conv1', last='bn1')",
        "end the segment before the call that is named",
    ),
    "OOC-114": Explanation(
        "not an allocation log",
        "The file is not JSON lines of requests, or of a version that this library does not "
        "know, or it frees what it never made.",
        "ooctrain replay README.md",
        "write it again with `ooctrain plan MODEL --allocation-log FILE`",
    ),
    "OOC-115": Explanation(
        "an error in a file of your own",
        "A model, planner or allocator that was named as file.py:Name raised an error of its own.",
        "ooctrain plan lenet --planner mine.py:Mine, whose plan() divides by zero",
        "`ooctrain --traceback COMMAND ...` shows the whole way there",
    ),
    "OOC-116": Explanation(
        "an operation that this GPU cannot run",
        "An operation has kernels for the cpu device only (yours, for example), or it wants what "
        "this GPU does not have.",
        "a user's own oc.Op in a step with device='cuda'",
        "--device cpu, or a method `cuda` beside `cpu`",
    ),
    "OOC-117": Explanation(
        "a file cannot be written",
        "What the command was asked to leave in a file does not go there: the disk is full, the "
        "folder is not there, or it may not be written to.",
        "ooctrain plan lenet --json /dev/full",
        "another file, or another disk",
    ),
    "OOC-118": Explanation(
        "no record of a step",
        "The file is not what `plan`, `simulate` or `train` write with --json, or the step in it "
        "was never planned, so that there is nothing to draw.",
        "ooctrain report README.md",
        "write it again with `ooctrain simulate MODEL --json FILE`",
    ),
    "OOC-119": Explanation(
        "no assignment that can be graded",
        "The folder has no rubric, the rubric has a word or number that cannot be, or its tests "
        "cannot be run.",
        "ooctrain grade docs",
        "name the folder of an assignment, such as tutorials/assignments/lru_planner",
    ),
    "OOC-120": Explanation(
        "no schedule fits the budget",
        "This planner finds no list that stays within the budget. `minimum_bytes` is the "
        "least budget with which it does, `witness_call` the call that needs it. Another "
        "planner may need less.",
        "ooctrain plan vgg16 --batch 256 --budget 1GiB --planner window",
        "the least budget printed, a smaller batch, or another planner",
    ),
    "OOC-121": Explanation(
        "fragmentation does not fit",
        "The list fits the budget, but the allocator cannot place it: free memory lies in "
        "pieces, none of which is large enough. Virtual addressing does not have this "
        "problem.",
        "ooctrain train resnet18 --budget 10% --allocator best-fit",
        "--allocator va, or the larger budget printed",
    ),
    "OOC-130": Explanation(
        "out of device memory",
        "An allocation found no room in the arena. With a verified plan this is a bug: "
        "please report it.",
        "allocating twice the budget by hand",
        "a larger budget, or a smaller batch",
    ),
    "OOC-131": Explanation(
        "an invalid free",
        "A block was freed twice, after its allocator was closed, or belongs to another allocator.",
        "block = allocator.allocate(4096, 'x'); allocator.free(block); allocator.free(block)",
        "free each block once",
    ),
    "OOC-132": Explanation(
        "an allocator's block cannot be used",
        "The allocator, most likely one of your own, hands out a block that lies on another live "
        "one, is not aligned, or holds less than was asked for. Training on it would give wrong "
        "numbers without any complaint, so it is looked for in the replay before the first step.",
        "ooctrain train lenet --allocator mine.py:Mine, whose allocate() returns one address twice",
        "oc.testing.check_allocator(Mine) shows the shortest list of requests that does it",
    ),
    "OOC-140": Explanation(
        "a copy failed",
        "A copy engine could not finish a transfer.",
        "a device closed while a copy runs",
        "`ooctrain doctor`; the cause is in the message",
    ),
    "OOC-150": Explanation(
        "a memory call failed",
        "The system or the driver refused a call. The message has its name and number.",
        "mmap of more than the address space holds",
        "`ooctrain doctor` checks the limits of this machine",
    ),
    "OOC-151": Explanation(
        "no virtual addressing",
        "This system cannot map memory as the allocator va needs it (no memfd).",
        "--allocator va on macOS",
        "--allocator best-fit",
    ),
    "OOC-152": Explanation(
        "no GPU that can be used",
        "There is no CUDA driver, an old one, no device, one that another process holds, or this "
        "process is a fork of one that uses CUDA. The message has the driver's own answer.",
        "ooctrain train lenet --device cuda, on a machine without a GPU",
        "`ooctrain doctor` says what is missing; --device cpu trains without a GPU",
    ),
    "OOC-153": Explanation(
        "no compiler for the GPU",
        "The kernels are compiled for the GPU by numba-cuda and NVIDIA's toolkit, and one of them "
        "is missing, or is newer than the driver.",
        "ooctrain train lenet --device cuda, without numba-cuda",
        "the message has the pip command that fits the driver",
    ),
    "OOC-160": Explanation(
        "values were lost",
        "A step failed half way, so that parameters on the device are not whole any more.",
        "a kernel that raises in the middle of a step",
        "resume from the last checkpoint, or load_state_dict",
    ),
    "OOC-161": Explanation(
        "the allocator and the ledger disagree",
        "After a step the allocator holds other bytes than the list says. This is a bug in "
        "the allocator, your own or ours.",
        "an allocator that forgets a free",
        "`oc.testing.check_allocator` finds where",
    ),
    "OOC-200": Explanation(
        "an illegal schedule",
        "A list breaks a rule of the verifier. The code printed is the rule's own, such as R203.",
        "a Run whose input was freed",
        "`ooctrain explain R203`",
    ),
    "OOC-210": Explanation(
        "a plan for something else",
        "The plan was made for another trace, granule, allocator or device than it is used with.",
        "a plan of batch 64 executed with a batch of 32",
        "plan again with the same model, batch, optimizer, threads and allocator",
    ),
    "OOC-290": Explanation(
        "a list breaks a law",
        "The law-checker runs a list on bytes in random orders. This list is illegal, or "
        "two of its instructions that may overlap touch the same bytes.",
        "Free x; Run f(x)",
        "`oc.verify` names the rule",
    ),
    "OOC-291": Explanation(
        "a planner breaks a law",
        "`oc.testing.check_planner` found a small trace on which the planner breaks a "
        "promise: a legal list within the budget, an honest minimum, the same plan when "
        "asked twice.",
        "a planner that forgets to round by the granule",
        "the message shows the trace, the list, the rule, and what the law says",
    ),
    "OOC-292": Explanation(
        "an allocator breaks a law",
        "`oc.testing.check_allocator` found a short list of requests after which the allocator "
        "breaks a promise: disjoint blocks that keep their bytes, honest books, a refused "
        "request changes nothing.",
        "an allocator that lets a block be freed twice",
        "the message shows the law's number, the requests, and how to repeat them; "
        "`ooctrain/testing/allocator_laws.py` states the laws",
    ),
    "OOC-300": Explanation(
        "a broken data file",
        "A file of a data set is missing, truncated, too long, or holds impossible values. "
        "`path` and `offset` say where.",
        "a CIFAR-10 file of 100 bytes",
        "fetch the file again",
    ),
    "OOC-310": Explanation(
        "a broken checkpoint",
        "The file is truncated, altered, or no checkpoint. Where a previous one lies beside"
        " it, that one is used and a warning says so.",
        "truncate -s -1 run.safetensors",
        "resume from an older file",
    ),
    "OOC-311": Explanation(
        "no checkpoint",
        "There is no file of that name, nor a previous one.",
        "ooctrain train lenet --resume nothing.safetensors",
        "the path that --checkpoint had",
    ),
    "OOC-312": Explanation(
        "a checkpoint of a newer version",
        "It was written by a later release of this library.",
        "a file of format 2 read by a release that knows format 1",
        "update ooctrain",
    ),
    "OOC-313": Explanation(
        "a checkpoint of another run",
        "Arrays or settings differ from those of the run that was saved; the message names "
        "the first.",
        "ooctrain train vgg11 --resume resnet18.safetensors",
        "resume with the same model, data, batch, optimizer and seed",
    ),
    "OOC-314": Explanation(
        "a checkpoint cannot be written",
        "The disk is full, or the folder may not be written. The last checkpoint is as it was.",
        "ooctrain train lenet --checkpoint /proc/run.safetensors",
        "free some space, or another folder",
    ),
    "OOC-320": Explanation(
        "training stopped",
        "The loss is no number any more, or the run was interrupted. The last checkpoint is kept.",
        "ooctrain train lenet --lr 1e9",
        "a smaller learning rate; `--resume` continues from the last checkpoint",
    ),
    "OOC-400": Explanation(
        "wrong use of gradients",
        "A second backward pass over a freed graph, a tensor without a graph, or an "
        "in-place write on a value that backward still needs.",
        "loss.backward(); loss.backward()",
        "the message names the tensor and the operation",
    ),
}


def all_codes() -> dict[str, str]:
    """{code: title} of all error codes, of the verifier's rules and of the allocators' laws."""
    return {
        **{code: entry.title for code, entry in CODES.items()},
        **{code: rule.title for code, rule in _rules().items()},
        **_laws(),
    }


def find_code(code: str) -> tuple[str, Explanation]:
    """(the code as it is written, what it means); the fix of a rule is to be read off its example,
    which of a law is the command that checks it.

    Raises:
        ConfigError: an unknown code.
    """
    wanted = code.strip().upper()
    if wanted in CODES:
        return wanted, CODES[wanted]
    if wanted in _rules():
        rule = _rules()[wanted]
        meaning = inspect.cleandoc(rule.check.__doc__ or "")
        return wanted, Explanation(rule.title, meaning, rule.example, "")
    if wanted in _laws():
        check = f"pytest --pyargs ooctrain.laws --allocator my.py:Mine -k law_{wanted}"
        return wanted, Explanation(_laws()[wanted], LAW_MEANING, check, "")
    near = difflib.get_close_matches(wanted, all_codes(), n=1)
    raise ConfigError(
        f"there is no code {code!r}",
        fix=f"did you mean {near[0]}?" if near else "`ooctrain explain` lists them all",
    )


def explain_code(code: str) -> str:
    """The text for a code, as `ooctrain explain` prints it.

    Raises:
        ConfigError: an unknown code.
    """
    known, entry = find_code(code)
    if known in _laws():
        meaning = textwrap.fill(entry.meaning, WIDTH)
        return f"{known}: {entry.title} (a law)\n\n{meaning}\n\nwhat checks it\n    {entry.example}"
    if known not in CODES:
        return (
            f"{known}: {entry.title} (a rule of the verifier)\n\n{entry.meaning}\n\n"
            f"smallest list that breaks it\n    {entry.example}"
        )
    example = "\n".join(f"    {line}" for line in entry.example.splitlines())
    return (
        f"{known}: {entry.title}\n\n{textwrap.fill(entry.meaning, WIDTH)}\n\n"
        f"smallest example\n{example}\n\nwhat mends it\n    {entry.fix}"
    )


def _laws() -> Mapping[str, str]:
    from ooctrain.testing.allocator_laws import LAWS

    return LAWS


def _rules() -> Mapping:
    from ooctrain.sched.rules import RULES

    return RULES
