"""Codes OOC-000 to OOC-119: an argument is wrong, and nothing has run yet.

These codes concern arguments, names, files and the shapes of operations. The code that refuses an
argument knows which values are valid, so its message states them. Read next: `memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

ARGUMENTS: Mapping[str, Explanation] = {
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
        "A size must be positive and below 2**62 bytes; a host budget may be 0.",
        "ooctrain plan lenet --budget 0",
        "`ooctrain plan MODEL` prints the smallest budget that fits; 100% is all that a step uses",
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
        "No planner, allocator, data set, model, command or option has that name, or it does not "
        "know that parameter. A model is a name or file.py:function; an ONNX graph or a PyTorch "
        "file cannot be read.",
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
        "missing dependency or definition",
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
        "An operation got shapes or element types that it cannot take, or an array came in that "
        "holds no real numbers: masked, complex, text, objects. The message names "
        "the operation, the shapes it got and the ones it needs.",
        "oc.nn.Linear(10, 2)(oc.tensor(np.zeros((4, 9), np.float32)))",
        "compare the last extent of the input with the layer's own",
    ),
    "OOC-111": Explanation(
        "invalid labels",
        "Labels of a cross-entropy are whole numbers from 0 to classes - 1, one for each "
        "sample or pixel.",
        "labels 0 to 10 for a network with 10 classes",
        "count the classes of the data; build the model with that many",
    ),
    "OOC-112": Explanation(
        "a state that does not fit the model",
        "The names or shapes of a state_dict are not those of the model, or what was given is no "
        "mapping of names to arrays, such as a path. Wrappers ({'state_dict': ...}) and the "
        "prefixes 'module.' and '_orig_mod.' at all keys are taken off, and any other ('model.' of "
        "Lightning) if what is left is just the model's keys.",
        "resnet18.load_state_dict(resnet34.state_dict())",
        "load it into the model it was saved from",
    ),
    "OOC-113": Explanation(
        "cannot be tiled",
        "A segment to tile is a chain of calls, each of which reads the image that the one "
        "before wrote: convolutions, poolings, paddings and pointwise operations. The "
        "message names the call that is none of these, or the fork, or what is wrong with "
        "the grid. Bands that keep their halos are as wide as the image, may run through sums and "
        "concatenations, and need a right row rule for each call, backward calls too.",
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
        "folder is not there, or it may not be written to. Tutorials are not copied over files of "
        "the same names, either.",
        "ooctrain plan lenet --json /dev/full",
        "another file, or another disk",
    ),
    "OOC-118": Explanation(
        "no record of a step",
        "The file is not what `plan`, `simulate` or `train` write with --json, or the step in it "
        "was never planned, so that there is nothing to draw. Two files that `ooctrain diff` is to "
        "compare must be of one kind: two such files, two plan files, or two lists as text.",
        "ooctrain report README.md",
        "write it again with `ooctrain simulate MODEL --json FILE`",
    ),
    "OOC-119": Explanation(
        "no assignment that can be graded",
        "The folder has no rubric, the rubric has a word or number that cannot be, or its tests "
        "cannot be run. Or the submission is of a kind that is not graded: an allocator that is "
        "told all requests before, or any file on a system that is neither Linux nor macOS.",
        "ooctrain grade docs",
        "name an assignment of `ooctrain course list`, such as lru_planner, or its folder",
    ),
}
