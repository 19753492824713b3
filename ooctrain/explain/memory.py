"""Codes OOC-120 to OOC-166: the step does not fit, or the device fails it.

These codes concern budgets, allocators, copies, mappings and drivers. The answer to a budget that
is too small is a budget that suffices; the answer to a machine that lacks something is `ooctrain
doctor`. Read next: `lists.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

MEMORY: Mapping[str, Explanation] = {
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
    "OOC-122": Explanation(
        "one memory budget, and another beside it",
        "--memory is one budget for all that the process holds; it is divided between device and "
        "host by the library. A --budget or --host-budget beside it would say the same again, and "
        "perhaps something else.",
        "ooctrain train resnet18 --memory 1GiB --budget 512MiB",
        "--memory alone, or both others without it",
    ),
    "OOC-123": Explanation(
        "no memory budget here",
        "--memory promises what the operating system will count of the process. A GPU's memory is "
        "not part of that, a preset of another machine is no process, and a system without "
        "/proc/self/smaps_rollup does not count so.",
        "ooctrain train resnet18 --memory 1GiB --device cuda",
        "--budget for the device, --host-budget for the host",
    ),
    "OOC-124": Explanation(
        "the memory is too little",
        "No division of this memory between arena and host slab lets any list run, once the "
        "process itself, the batches on their way and the values that move between sessions are "
        "counted. `minimum_bytes` is a memory in which a plan has been found.",
        "ooctrain train resnet18 --data digits --batch 256 --memory 100MiB",
        "the memory printed, or a smaller batch",
    ),
    "OOC-125": Explanation(
        "a promise was broken",
        "The system counted more of this process than --memory promised. Training is right all the "
        "same. Either something beside the training took memory (data that is decoded as it is "
        "read, operations of one's own), or this is a bug: please report it with the two lines "
        "that begin with `memory`.",
        "ooctrain train my_model.py:make --memory 1GiB, where make() keeps every batch",
        "a smaller --memory leaves room; `docs/memory.md` lists what is counted",
    ),
    "OOC-126": Explanation(
        "a planner or a rewrite failed",
        "It raised something other than the library's own errors, so it is a bug: of your own "
        "planner or rewrite, or of the library's. Where several planners are asked, as by `auto`, "
        "the others still are, and the plan's remarks name the failure; this error means that it "
        "was asked by name, or that no other one has a plan. In Python, `__cause__` is what was "
        "raised.",
        "ooctrain plan lenet --planner mine.py:Mine, which divides by zero",
        "another planner; `ooctrain --traceback COMMAND ...` shows where it was raised",
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
    "OOC-141": Explanation(
        "the disk that is the host has failed",
        "With --spill the host slab lies in a file. During a step the disk was full, beyond a "
        "quota, or failed to read or write. The step is lost with the values that lay there; a "
        "checkpoint is not.",
        "ooctrain train resnet18 --budget 40% --spill FOLDER, on a disk that another program fills",
        "free space or another folder, and --resume with the last checkpoint",
    ),
    "OOC-142": Explanation(
        "nothing can be spilled to this folder",
        "The folder is not there, may not be written to, has too little space for the whole host "
        "slab, or is memory under the name of a file system (tmpfs), which would save none. The "
        "space is taken before the first step, so nothing is lost.",
        "ooctrain train resnet18 --budget 40% --spill /dev/shm",
        "a folder on a disk with enough space; `df -hT` lists them",
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
        "no usable GPU",
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
    "OOC-154": Explanation(
        "a step cannot be recorded as a graph",
        "With OOCTRAIN_LAUNCHER=graph a step is recorded once and launched as a whole from then "
        "on. That needs a step that maps no memory, leaves every value where it found it, and "
        "whose kernels say which of their numbers change. Other steps run piece by piece, as "
        "without it; `Session.replays.refusal` says which of these it is.",
        "OOCTRAIN_LAUNCHER=graph with the allocator passthrough, which maps at each request",
        "a planner of whole variables (keep-all, window), the allocators va or best-fit",
    ),
    "OOC-160": Explanation(
        "values were lost",
        "The device failed in the middle of a step (its driver, a copy, a disk), so parameters on "
        "it are not whole any more. An interrupt or an operation that raises loses nothing.",
        "a disk that fails while values are spilled to it",
        "resume from the last checkpoint, or load_state_dict",
    ),
    "OOC-161": Explanation(
        "the allocator and the ledger disagree",
        "After a step the allocator holds other bytes than the list says. This is a bug in "
        "the allocator, your own or ours.",
        "an allocator that forgets a free",
        "`oc.testing.check_allocator` finds where",
    ),
    "OOC-162": Explanation(
        "two threads at once",
        "A trainer works for any thread, and for one at a time: while one is in a step, an "
        "evaluation or another of its methods, a second one is refused, and so is reading "
        "a parameter during a step. The values have not changed.",
        "threading.Thread(target=trainer.step, args=batch), twice",
        "one thread after the other, with a threading.Lock; or a model for each thread",
    ),
    "OOC-163": Explanation(
        "a fork of the trainer's process",
        "The values are on the device, which only the process that opened it has. Its fork, such "
        "as a worker of multiprocessing's start method fork, cannot train, evaluate or read them; "
        "the process itself goes on.",
        "a step, then os.fork(), and a step in the child",
        "close the trainer before the fork, which brings the values to the host, or have "
        "multiprocessing spawn; in the fork load_state_dict after trainer.close()",
    ),
    "OOC-166": Explanation(
        "a sweep's case kills its process",
        "The process that computes a case of `compare` or `reproduce` died without a word, and so "
        "did a second one that had nothing else to do. Mostly that is the system, which kills the "
        "process that takes most when memory is short. All other cases are done and kept, so the "
        "same command goes on from there.",
        "a step of a hundred thousand calls, planned in 1 GiB of memory",
        "a machine with more memory, or a sweep without this case",
    ),
}
