"""Codes OOC-300 to OOC-400: data, checkpoints, and training itself.

These codes concern broken files, runs that cannot continue, and gradients that are requested
wrongly. The last good checkpoint is kept, and the message says from which file to resume.
Read next: `execution/checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

TRAINING: Mapping[str, Explanation] = {
    "OOC-300": Explanation(
        "a broken data file",
        "A file of a data set is missing, truncated, too long, or holds impossible values; or an "
        "image has more than 8192 x 8192 pixels, as it is or scaled, and is not decoded; or its "
        "pixels are no shades from black to white, such as floats beyond 0 to 1. `path` and "
        "`offset` say where.",
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
        "Arrays, settings or classes differ from those of the run that was saved; the message "
        "names the first. Images that were added or removed do not matter, and are told.",
        "ooctrain train vgg11 --resume resnet18.safetensors",
        "resume with the same model, data, batch, optimizer and seed",
    ),
    "OOC-314": Explanation(
        "a checkpoint cannot be written",
        "The disk is full, or the folder may not be written. The last checkpoint is as it was. "
        "What can be found before the first step is found then.",
        "ooctrain train lenet --checkpoint /proc/run.safetensors",
        "free some space, or another folder",
    ),
    "OOC-315": Explanation(
        "another process writes this checkpoint",
        "Two runs with one checkpoint would each replace the other's, so a run locks a file "
        "beside it (.lock) until it ends.",
        "the same ooctrain train --checkpoint run.safetensors in two terminals",
        "wait until the other run has ended, or another --checkpoint",
    ),
    "OOC-320": Explanation(
        "training stopped",
        "The loss, or a number that the step was about to write, is not finite, so the step was "
        "undone (the error says if not all of it was); or the run was interrupted by Ctrl-C, "
        "SIGTERM or SIGHUP. The last checkpoint is kept.",
        "ooctrain train lenet --lr 1e9",
        "a smaller learning rate; `--resume` continues from the last checkpoint",
    ),
    "OOC-330": Explanation(
        "ranks that differ",
        "Ranks that train together were given another version, model, batch, seed, budget, data or "
        "other values, or one of them is lost or was interrupted. They meet before each step, so "
        "the error comes on all of them, and names who differs from rank 0, in what.",
        "mpiexec -n 1 ooctrain train lenet : -n 1 ooctrain train lenet --seed 1",
        "the same command, program and version for all ranks",
    ),
    "OOC-340": Explanation(
        "a step that differs each time it is traced",
        "A step is traced once and run many times. This one draws random numbers in Python, looks "
        "at the clock, or counts its own calls, so each step would have what the first trace had. "
        "`where` names the line.",
        "def forward(self, x): return self.layer(x) if random.random() < 0.8 else x",
        "nn.Dropout or nn.StochasticDepth, which draw by (seed, step, call); what changes between "
        "steps as an attribute of the model or the loss; or @oc.traced_every_step, which traces "
        "each step anew",
    ),
    "OOC-400": Explanation(
        "wrong use of gradients",
        "A second backward pass over a freed graph, a tensor without a graph, an in-place write "
        "on a value that backward still needs, or gradients to be clipped whose norm is not a "
        "finite number (error_if_nonfinite).",
        "loss.backward(); loss.backward()",
        "the message names the tensor and the operation",
    ),
}
