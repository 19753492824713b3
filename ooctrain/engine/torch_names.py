"""Names of PyTorch that are missing here, with a replacement for each.

A missing name is a question, "how do I do that here?", so its error answers it: by the line of that
very name, or by the nearest name that there is. All places ask here, by their own `__getattr__`,
which imports this file when a name is missing and not before: `oc`, `oc.nn`, `oc.functional`,
`oc.nn.init`, `oc.utils`, `oc.optim`, `oc.data`, tensors and modules. The table is printed in
docs/torch.md. Read next: `tests/strangers/test_pytorchs_words.py`, the names that scripts use.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_RECURRENT = "networks over sequences are outside this library of convolutional networks"
_THREE_D = "only 2-d convolutions and poolings have kernels"
_ATTENTION = "build it of Linear and functional.scaled_dot_product_attention"
_OWN_OP = "write an oc.Op"
_FUNCTION = "there is a function of that name in oc.functional"
_DEVICE = "Trainer(model, ..., device=...) chooses the device"
_COMPARE = "compare the values: x.numpy() and NumPy's function of that name"
_IN_PLACE = "copy_(array) overwrites the value of a tensor; x = ... is a new one"
_IN_PLACE_OPERATOR = "use the operator: += -= *= /="
_OPERATOR = "use the operator: + - * /"
_ONE_DEVICE = "this library trains on one device; oc.distributed has several ranks"
_FLOAT32 = "tensors of numbers are float32"
_HOOK = "a Module around it, whose forward calls it and looks at what goes in and comes out"
_GRADIENTS = "gradients are in parameter.grad after backward; an oc.Op sees them on their way"
_OPTIMIZER = "SGD, Adam, AdamW and RMSprop are there; a subclass of oc.optim.Optimizer is any other"
_SCHEDULE = "write a subclass of LRScheduler with factor(epoch, base_lr)"
_TRANSFORM = "a function (image, draws) -> image of your own, as DataLoader(transform=)"
_SAMPLER = "DataLoader(shuffle=, seed=) decides the order; Subset(dataset, indices) gives any other"

_MATRIX = "multiply by a mask from NumPy: np.tri, np.eye, registered as a buffer"
_NUMPY = "NumPy has it: oc.tensor(np...), where no gradient passes through it"
_RANKS = "oc.distributed.world() in a run of mpirun: Trainer(model, ranks=world())"
_EXCHANGE = "Trainer(ranks=world()) exchanges gradients by itself; comm of mpi4py does the rest"

#: {place: {name of PyTorch's there: what to do instead}}
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "tensor": {
    "argmax": "tensor.numpy().argmax(...): no gradient passes through it",
    "T": "transpose(0, 1)", "t": "transpose(0, 1)",
    "contiguous": "leave it out", "clone": "oc.tensor(x.numpy())", "data": "detach()",
    "to": _DEVICE, "cpu": "leave it out",
    "cuda": "Trainer(model, ..., device='cuda')", "float": "tensors of numbers are float32",
    "half": "tensors of numbers are float32", "double": "tensors of numbers are float32",
    "long": "oc.tensor(whole numbers)", "relu": _FUNCTION,
    "sigmoid": _FUNCTION, "tanh": _FUNCTION, "softmax": _FUNCTION, "log_softmax": _FUNCTION,
        "equal": "np.array_equal(x.numpy(), y.numpy())",
        "allclose": "np.allclose(x.numpy(), y.numpy())", "isnan": _COMPARE, "isinf": _COMPARE,
        "isfinite": _COMPARE, "all": _COMPARE, "any": _COMPARE, "nonzero": _COMPARE,
        "unique": _COMPARE, "sort": _COMPARE, "argsort": _COMPARE, "argmin": _COMPARE,
        "byte": "oc.tensor(bytes): uint8 arrays stay bytes", "outer": "x[:, None] * y[None, :]",
        "diag": _MATRIX, "diagonal": _MATRIX, "triu": _MATRIX, "tril": _MATRIX, "trace": _MATRIX,
        "cross": _OWN_OP, "addmm": "x + a @ b", "repeat_interleave": "reshape and expand",
        "unfold": _OWN_OP, "tile": "repeat(sizes)", "masked_select":
        "where(mask, other): its shape does not depend on values", "logical_and": _COMPARE,
        "sum_to_size": "sum(dim, keepdim=True)",
        "cumsum": _OWN_OP, "prod": _OWN_OP, "round": _OWN_OP, "floor": _OWN_OP, "sign": _OWN_OP,
        "sin": _OWN_OP, "cos": _OWN_OP,
        "topk": "np.argsort(x.numpy(), 1)[:, -k:]: no gradient passes through it",
        "gather": _OWN_OP, "scatter_": "make one-hot rows in NumPy, as part of the batch",
        "index_select": "slice it: x[a:b], or index x.numpy()",
        "dot": "(x * y).sum()", "einsum": _OWN_OP,
        "add": _OPERATOR, "sub": _OPERATOR, "mul": _OPERATOR, "div": _OPERATOR,
        "neg": "use the operator: -x",
        "add_": _IN_PLACE_OPERATOR, "sub_": _IN_PLACE_OPERATOR, "mul_": _IN_PLACE_OPERATOR,
        "div_": _IN_PLACE_OPERATOR,
        "fill_": _IN_PLACE, "zero_": _IN_PLACE, "clamp_": _IN_PLACE, "detach_": _IN_PLACE,
        "normal_": "nn.init.normal_(parameter)", "uniform_": "nn.init.uniform_(parameter)",
        "view_as": "reshape(other.shape)",
        "reshape_as": "reshape(other.shape)", "swapaxes": "transpose(dim0, dim1)",
        "movedim": "permute(...)", "type": _FLOAT32, "type_as": _FLOAT32, "bfloat16": _FLOAT32,
        "int": "oc.tensor(x.numpy().astype(int))", "bool": "x.numpy() != 0",
        "device": _DEVICE, "is_cuda": _DEVICE, "pin_memory": "leave it out: copies are planned",
        "register_hook": _GRADIENTS, "retain_grad": _GRADIENTS, "grad_fn": "requires_grad and "
        "is_leaf say whether it was computed", "data_ptr": "tensors have no address of their own",
        "stride": "elements are in (N, C, H, W) order", "is_contiguous": "leave it out: always so",
        "new_zeros": "oc.zeros(shape)", "new_tensor": "oc.tensor(array)", "stack": "functional."
        "cat of x.unsqueeze(0) for each", "cat": _FUNCTION, "gelu": _FUNCTION,
        "element_size": "4 bytes of float32, 8 of int64", "share_memory_": "leave it out",
    },
    "module": {
        "cuda": "Trainer(model, ..., device='cuda') trains it there", "half": "Trainer(rewrites="
        "['narrow:1048576']) keeps large activations narrow; parameters are float32",
        "double": _FLOAT32,
        "bfloat16": _FLOAT32, "type": _FLOAT32, "to_empty": "parameters are made when needed",
        "register_forward_hook": _HOOK, "register_forward_pre_hook": _HOOK,
        "register_full_backward_hook": _GRADIENTS, "register_backward_hook": _GRADIENTS,
        "register_full_backward_pre_hook": _GRADIENTS,
        "register_state_dict_pre_hook": "change the mapping that state_dict() returns",
        "register_load_state_dict_post_hook": "look at what load_state_dict(...) returns",
        "compile": "leave it out: Trainer plans and compiles the step",
        "share_memory": "leave it out", "ipu": _DEVICE, "xpu": _DEVICE,
        "reset_parameters": "nn.init functions on its parameters, or a new layer",
        "set_submodule": "assign it to the attribute: parent.name = module",
        "fuse_model": "leave it out: Trainer fuses by its rewrites", "device": _DEVICE,
    },
    "trainer": {
        "train": "fit(batches) trains epochs, step(x, y) one step", "train_step": "step(x, y)",
        "test": "evaluate(batches)", "validate": "evaluate(batches)", "eval": "evaluate(batches)",
        "load": "resume(path)", "load_checkpoint": "resume(path)", "save_checkpoint": "save(path)",
        "state_dict": "trainer.model.state_dict(), or save(path) for all that persists",
        "load_state_dict": "trainer.model.load_state_dict(state), or resume(path)",
        "forward": "predict(x)", "backward": "step(x, y) does it", "zero_grad": "step does it",
        "to": _DEVICE, "cuda": "Trainer(model, ..., device='cuda')", "cpu": "leave it out",
        "parameters": "trainer.model.parameters()", "lr": "trainer.optimizer.param_groups",
        "compile": "prepare(input_shape) traces and plans a step",
    },
    "functional": {
    "alpha_dropout": "use dropout",
    "avg_pool1d": _THREE_D, "avg_pool3d": _THREE_D, "conv1d": _THREE_D, "conv3d": _THREE_D,
    "max_pool1d": _THREE_D, "max_pool3d": _THREE_D, "dropout1d": "use dropout",
    "dropout3d": "use dropout",
    "batch_norm1d": "batch_norm takes (N, C) and (N, C, L) too",
    "binary_cross_entropy": "use binary_cross_entropy_with_logits, without the sigmoid before it",
    "bilinear": "use matmul",
    "threshold": "use tensor.clamp(min=...)",
    "ctc_loss": _RECURRENT, "embedding": _RECURRENT, "embedding_bag": _RECURRENT,
    "gaussian_nll_loss": "write an oc.Op",
    "hinge_embedding_loss": "write it with tensors' arithmetic",
    "huber_loss": "use smooth_l1_loss(beta=delta) * delta",
    "kl_div": "write it with log_softmax and tensors' arithmetic",
    "one_hot": "losses take class numbers; make one-hot rows in NumPy, as part of the batch",
    "grid_sample": "write an oc.Op",
    "unfold": "use conv2d", "fold": "use "
    "conv_transpose2d",
    "multi_head_attention_forward": _ATTENTION,
        "relu_": "use relu", "leaky_relu_": "use leaky_relu", "max_pool2d_with_indices":
        "max_pool2d gives the values", "adaptive_avg_pool1d": _THREE_D, "upsample":
        "use interpolate", "upsample_nearest": "use interpolate", "upsample_bilinear":
        "use interpolate(mode='bilinear', align_corners=True)", "affine_grid": _OWN_OP,
        "cosine_similarity": "write it with tensors' arithmetic", "pairwise_distance":
        "write it with tensors' arithmetic", "triplet_margin_loss":
        "write it with tensors' arithmetic",
        "gumbel_softmax": _OWN_OP, "rrelu": "use leaky_relu", "max_unpool2d": _OWN_OP,
        "lp_pool2d": _OWN_OP,
        "feature_alpha_dropout": "use dropout2d", "soft_margin_loss": _OWN_OP,
        "poisson_nll_loss": _OWN_OP, "multilabel_soft_margin_loss":
        "use binary_cross_entropy_with_logits", "margin_ranking_loss":
        "write it with tensors' arithmetic", "cosine_embedding_loss":
        "write it with tensors' arithmetic",
    },
    "nn": {
    "AvgPool1d": _THREE_D, "AvgPool3d": _THREE_D, "BatchNorm3d": _THREE_D, "Conv1d": _THREE_D,
    "Conv3d": _THREE_D, "ConvTranspose1d": _THREE_D, "ConvTranspose3d": _THREE_D,
    "MaxPool1d": _THREE_D, "MaxPool3d": _THREE_D, "InstanceNorm1d": "use GroupNorm with as many "
    "groups as channels", "InstanceNorm3d": _THREE_D,
    "BCELoss": "use BCEWithLogitsLoss, without the Sigmoid before it",
    "Bilinear": "use functional.matmul", "MultiheadAttention": _ATTENTION,
    "Transformer": _ATTENTION, "TransformerEncoderLayer": _ATTENTION,
    "CTCLoss": _RECURRENT, "Embedding": _RECURRENT, "GRU": _RECURRENT, "LSTM": _RECURRENT,
    "RNN": _RECURRENT,
    "DataParallel": "this library trains on one device",
    "HuberLoss": "use SmoothL1Loss(beta=delta), times delta",
    "KLDivLoss": "write it with log_softmax and tensors' arithmetic",
    "LazyConv2d": "give the number of channels", "LazyLinear": "give the number of features",
    "ParameterDict": "assign parameters to attributes",
    "ParameterList": "assign parameters to attributes, or register_parameter(name, parameter)",
    "SyncBatchNorm": "this library trains on one device",
    "Unflatten": "use tensor.reshape in forward",
    "UpsamplingBilinear2d": "use Upsample(mode='bilinear', align_corners=True)",
    "UpsamplingNearest2d": "use Upsample",
        "AlphaDropout": "use Dropout", "Dropout1d": "use Dropout", "Dropout3d": "use Dropout",
        "Hardshrink": _OWN_OP, "Softshrink": _OWN_OP,
        "Threshold": "use tensor.clamp(min=...) in forward", "RReLU": "use LeakyReLU",
        "ReflectionPad1d": _THREE_D, "ZeroPad1d": _THREE_D,
        "ReplicationPad1d": _THREE_D,
        "AdaptiveAvgPool1d": _THREE_D, "AdaptiveAvgPool3d": _THREE_D, "Dropout2D": "use Dropout2d",
        "FractionalMaxPool2d": "use MaxPool2d", "LPPool2d": "use AvgPool2d", "MaxUnpool2d":
        "use Upsample", "Unfold": "use Conv2d", "Fold": "use ConvTranspose2d",
        "CosineSimilarity":
        "write it with tensors' arithmetic", "PairwiseDistance":
        "write it with tensors' arithmetic", "TripletMarginLoss":
        "write it with tensors' arithmetic", "MarginRankingLoss":
        "write it with tensors' arithmetic", "CosineEmbeddingLoss":
        "write it with tensors' arithmetic", "MultiLabelSoftMarginLoss": "use BCEWithLogitsLoss",
        "MultiMarginLoss": _OWN_OP, "PoissonNLLLoss": _OWN_OP, "GaussianNLLLoss": _OWN_OP,
        "HingeEmbeddingLoss": "write it with tensors' arithmetic", "RMSNorm": "use LayerNorm",
        "LSTMCell": _RECURRENT, "GRUCell": _RECURRENT, "RNNCell": _RECURRENT,
        "TransformerEncoder": _ATTENTION, "TransformerDecoder": _ATTENTION,
        "TransformerDecoderLayer": _ATTENTION, "EmbeddingBag": _RECURRENT,
        "LazyBatchNorm2d": "give the number of channels", "Buffer": "register_buffer(name, array)",
        "parallel": _ONE_DEVICE, "quantization": "weights are float32", "NLLLoss2d": "use NLLLoss",
        "UninitializedParameter": "give the shape", "modules": "the classes are in oc.nn itself",
        "qat": "weights are float32", "utils.rnn": _RECURRENT, "Container": "use Module",
    },
    "init": {
        "sparse_": "parameter.copy_(array) with zeros of your own",
        "normal": "normal_", "constant": "constant_",
        "xavier_normal": "xavier_normal_", "xavier_uniform": "xavier_uniform_",
        "kaiming_normal": "kaiming_normal_", "kaiming_uniform": "kaiming_uniform_",
        "orthogonal": "orthogonal_", "eye": "eye_", "dirac": "dirac_",
    },
    "utils": {
        "data": "oc.data: DataLoader, TensorDataset, Subset, random_split",
        "clip_grad_norm": "clip_grad_norm_, or Trainer(clip=...)",
        "parameters_to_vector": "np.concatenate([p.numpy().ravel() for p in model.parameters()])",
        "vector_to_parameters": "p.copy_(array) for each parameter",
        "get_total_norm": "clip_grad_norm_ returns it", "weight_norm": _OWN_OP,
        "spectral_norm": _OWN_OP, "parametrizations": _OWN_OP, "parametrize": _OWN_OP,
        "prune": "parameter.copy_(array) with zeros of your own", "rnn": _RECURRENT,
        "remove_weight_norm": "there is no weight_norm", "fuse_conv_bn_eval":
        "leave it out: Trainer fuses by its rewrites",
        "checkpoint": "a budget: oc.plan(trace, '50%', 'rotor') computes again",
        "tensorboard": "Trainer.fit returns the losses",
        "stateless": "model.load_state_dict(...)", "model_zoo": "oc.models.build(name)",
    },
    "optim": {
        "Adagrad": _OPTIMIZER, "Adadelta": _OPTIMIZER, "Adamax": _OPTIMIZER, "NAdam": _OPTIMIZER,
        "RAdam": _OPTIMIZER, "ASGD": _OPTIMIZER, "Rprop": _OPTIMIZER, "LBFGS": _OPTIMIZER,
        "SparseAdam": _OPTIMIZER, "Adafactor": _OPTIMIZER, "Muon": _OPTIMIZER,
        "swa_utils": "average state_dict() values in NumPy", "LambdaLR": "oc.optim.lr_scheduler: "
        "write a subclass of LRScheduler with factor(epoch, base_lr)",
    },
    "lr_scheduler": {
        "LambdaLR": _SCHEDULE, "MultiplicativeLR": _SCHEDULE, "ConstantLR": _SCHEDULE,
        "PolynomialLR": _SCHEDULE, "CyclicLR": "use OneCycleLR, or " + _SCHEDULE,
        "CosineAnnealingWarmRestarts": "use CosineAnnealingLR, or " + _SCHEDULE,
        "ChainedScheduler": "step both schedules", "_LRScheduler": "use LRScheduler",
    },
    "data": {
        "IterableDataset": "a Dataset has a length: __len__ and __getitem__",
        "ConcatDataset": "TensorDataset of joined arrays, or a Dataset of your own",
        "ChainDataset": "TensorDataset of joined arrays, or a Dataset of your own",
        "StackDataset": "a Dataset of your own with __getitem__", "Sampler": _SAMPLER,
        "RandomSampler": _SAMPLER, "SequentialSampler": _SAMPLER, "BatchSampler": _SAMPLER,
        "SubsetRandomSampler": _SAMPLER, "WeightedRandomSampler": _SAMPLER,
        "DistributedSampler": _ONE_DEVICE, "distributed": _ONE_DEVICE,
        "default_collate": "a batch is (images, targets), stacked by the loader",
        "get_worker_info": "workers are threads of this process",
        "ImageFolder": "use image_folder(path)", "DatasetFolder": "use image_folder(path)",
        "MNIST": "use mnist(...)", "FashionMNIST": "use mnist(...)", "CIFAR10": "use cifar10(...)",
        "CIFAR100": "use image_folder(path), or a Dataset of your own",
        "ImageNet": "use image_folder(path)", "FakeData": "use synthetic(...)",
        "datasets": "oc.data itself: mnist, cifar10, image_folder, synthetic",
        "dataloader": "DataLoader",
    },
    "transforms": {
        "v2": _TRANSFORM,
        "Resize": _TRANSFORM, "RandomResizedCrop": _TRANSFORM, "ColorJitter": _TRANSFORM,
        "ToTensor": "images are arrays already: leave it out", "RandomErasing": _TRANSFORM,
        "RandomRotation": _TRANSFORM, "RandomAffine": _TRANSFORM, "Grayscale": _TRANSFORM,
        "Pad": _TRANSFORM, "Lambda": "a function (image, draws) -> image is a transform",
        "PILToTensor": "images are arrays already: leave it out", "RandAugment": _TRANSFORM,
        "AutoAugment": _TRANSFORM, "TrivialAugmentWide": _TRANSFORM, "FiveCrop": _TRANSFORM,
        "ConvertImageDtype": "images are float32 already: leave it out",
        "InterpolationMode": _TRANSFORM, "GaussianBlur": _TRANSFORM, "functional": _TRANSFORM,
        "RandomApply": _TRANSFORM, "ToPILImage": "Pillow's Image.fromarray(array)",
    },
    "distributed": {
        "init_process_group": _RANKS, "destroy_process_group": _RANKS, "launch": _RANKS,
        "is_initialized": _RANKS, "is_available": "`ooctrain doctor` says whether MPI is there",
        "get_rank": "world().rank", "get_world_size": "world().count", "all_reduce": _EXCHANGE,
        "all_gather": _EXCHANGE, "broadcast": _EXCHANGE, "reduce": _EXCHANGE,
        "barrier": _EXCHANGE, "ReduceOp": _EXCHANGE,
    },
    "oc": {
        "set_float32_matmul_precision": "Trainer(allow_tf32=True)",
        "linalg": _NUMPY, "fft": _NUMPY, "special": _NUMPY, "meshgrid": _NUMPY, "logspace": _NUMPY,
        "Size": "shapes are tuples", "flip": "x.flip(dims)", "roll": "x.roll(shifts, dims)",
        "square": "x.square()", "cumsum": _OWN_OP, "prod": _OWN_OP, "addmm": "x + a @ b",
        "tril": _MATRIX, "triu": _MATRIX, "inf": "math.inf", "nan": "math.nan", "pi": "math.pi",
        "iinfo": "np.iinfo(np.int64)", "nan_to_num": "where(x.ne(x), y, x)", "outer":
        "x[:, None] * y[None, :]", "dot": "(x * y).sum()", "logical_and": _COMPARE,
        "logical_not": _COMPARE,
        "cuda": "Trainer(model, ..., device='cuda'); `ooctrain doctor` says whether there is a GPU",
        "device": "a word: Trainer(model, ..., device='cuda' or 'cpu')",
        "backends": "sums are in a fixed order, so results repeat without a setting",
        "use_deterministic_algorithms": "leave it out: results repeat",
        "set_num_threads": "Trainer(threads=...)", "get_num_threads": "Trainer(threads=...)",
        "compile": "leave it out: Trainer plans and compiles the step",
        "jit": "oc.trace(model, shape)",
        "onnx": "oc.to_onnx(model, shape, file) and oc.from_onnx(file)",
        "fx": "oc.trace(model, shape) is the graph of a step", "hub": "oc.models.build(name)",
        "amp": "Trainer(rewrites=['narrow:1048576']) keeps large activations narrow",
        "autocast": "Trainer(rewrites=['narrow:1048576']) keeps large activations narrow",
        "GradScaler": "leave it out: gradients are float32",
        "float16": _FLOAT32, "half": _FLOAT32, "bfloat16": _FLOAT32, "float64": _FLOAT32,
        "double": _FLOAT32, "int32": "whole numbers are int64", "int": "whole numbers are int64",
        "int8": "whole numbers are int64", "bool": "NumPy's bool arrays are not tensors' values",
        "set_default_dtype": _FLOAT32, "get_default_dtype": _FLOAT32,
        "set_default_device": _DEVICE, "FloatTensor": "oc.tensor(array)",
        "LongTensor": "oc.tensor(whole numbers)", "Generator": "oc.manual_seed(seed)",
        "seed": "oc.manual_seed(seed)", "initial_seed": "oc.manual_seed(seed)",
        "get_rng_state": "oc.manual_seed(seed)", "random": "oc.manual_seed(seed)",
        "inference_mode": "oc.no_grad()", "enable_grad": "leave oc.no_grad()",
        "set_grad_enabled": "oc.no_grad()", "is_grad_enabled": "oc.no_grad()",
        "autograd": "loss.backward(); an oc.Op has a gradient of its own", "is_tensor":
        "isinstance(x, oc.Tensor)", "add": _OPERATOR, "sub": _OPERATOR, "mul": _OPERATOR,
        "div": _OPERATOR, "mm": "use matmul", "einsum": _OWN_OP,
        "exp": "tensor.exp()", "log": "tensor.log()", "sqrt": "tensor.sqrt()",
        "abs": "tensor.abs()", "sin": _OWN_OP, "cos": _OWN_OP, "pow": "x ** exponent",
        "clamp": "tensor.clamp(min, max)", "sum": "tensor.sum(dim)",
        "mean": "tensor.mean(dim)", "std": "tensor.std(dim)", "var": "tensor.var(dim)",
        "norm": "tensor.norm(p, dim)", "max": "tensor.max(dim)", "min": "tensor.min(dim)",
        "argmax": "x.numpy().argmax(...): no gradient passes through it",
        "topk": "np.argsort(x.numpy(), 1)[:, -k:]", "sort": "np.sort(x.numpy())",
        "unique": "np.unique(x.numpy())", "eq": _COMPARE, "equal":
        "np.array_equal(x.numpy(), y.numpy())", "allclose": "np.allclose(x.numpy(), y.numpy())",
        "isnan": "np.isnan(x.numpy())", "isfinite": "np.isfinite(x.numpy())",
        "reshape": "tensor.reshape(shape)", "transpose":
        "tensor.transpose(dim0, dim1)", "permute": "tensor.permute(...)", "squeeze":
        "tensor.squeeze(dim)", "unsqueeze": "tensor.unsqueeze(dim)", "numel": "tensor.numel()",
        "empty": "oc.zeros(shape)", "empty_like": "oc.zeros_like(x)", "clone":
        "oc.tensor(x.numpy())", "gather": _OWN_OP, "bincount": "np.bincount(x.numpy())",
        "multiprocessing": "DataLoader(num_workers=) has threads", "profiler":
        "`ooctrain report` and trainer.timeline show where the time goes", "version":
        "oc.__version__", "vmap": "write the batch as an axis", "func": "modules and oc.Op",
        "set_printoptions": "np.set_printoptions", "finfo": "np.finfo(np.float32)",
        "strided": "leave it out", "channels_last": "leave it out: layouts are the library's",
        "memory_format": "leave it out: layouts are the library's", "quantization":
        "weights are float32", "sparse": "tensors are dense", "optim.lr_scheduler":
        "oc.optim.lr_scheduler", "datasets": "oc.data", "transforms": "oc.data.transforms",
    },
}  # fmt: skip
#: A word is near to another from this ratio of difflib's on.
_NEAR = 0.6


def refusal(where: str, name: str, place: str, present: Iterable[str]) -> AttributeError:
    """The error for a name that is missing somewhere.

    Args:
        where: in words, such as "a tensor" or "ooctrain.nn".
        place: a place in `INSTEAD`.
        present: names that are there.
    """
    table, said = INSTEAD[place], f"{where} has no {name!r}"
    if name.startswith("_") and name not in table:  # a question of Python's own
        return AttributeError(said)
    if name in table:
        return AttributeError(f"{said}: {table[name]} (`ooctrain docs torch` says what there is)")
    known = {word.lower(): word for word in (*table, *present) if not word.startswith("_")}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
    return AttributeError(f"{said}; did you mean {known[near[0]]!r}?" if near else said)
