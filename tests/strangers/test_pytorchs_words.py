"""PyTorch's everyday words: there with PyTorch's value, or a line that names the replacement.

The names are those that torchvision's reference training scripts, PyTorch's beginner tutorials and
public bug reports use. `VALUES` are compared with numbers here, and with torch itself in
tests/peers/test_torch_words.py.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.torch_names import INSTEAD
from ooctrain.errors import AutogradError, ConfigError, ShapeError

#: {place: (what has the names, the names)}
WORDS = {
    "oc": """
        tensor Tensor zeros ones full zeros_like ones_like full_like arange linspace eye rand randn
        rand_like randn_like randint randperm from_numpy as_tensor empty empty_like cat concat stack
        flatten relu sigmoid tanh softmax manual_seed no_grad inference_mode set_grad_enabled
        enable_grad is_grad_enabled save load device cuda backends float32 float16 bfloat16 float64
        int64 int32 uint8 long half double bool nn optim data utils models distributed jit onnx hub
        amp autocast GradScaler compile fx autograd Generator get_rng_state set_num_threads
        get_num_threads is_tensor numel allclose equal eq isnan isfinite add sub mul div matmul mm
        bmm einsum exp log sqrt abs sin cos pow where maximum minimum clamp sum mean std var norm
        max min argmax topk sort unique split chunk reshape transpose permute squeeze unsqueeze
        clone gather bincount multiprocessing profiler version set_printoptions
        set_float32_matmul_precision linalg fft special Size flip roll square cumsum addmm tril triu
        meshgrid inf nan pi iinfo logspace nan_to_num outer dot prod logical_and logical_not
        set_default_dtype set_default_device use_deterministic_algorithms channels_last
        memory_format FloatTensor LongTensor seed initial_seed finfo
    """,
    "tensor": """
        byte outer diag diagonal triu tril trace cross addmm repeat_interleave unfold tile
        masked_select logical_and sum_to_size movedim
        shape size dim ndim numel nelement dtype device item tolist numpy detach backward grad
        requires_grad requires_grad_ is_leaf grad_fn to cpu cuda float half double long int bool
        type type_as clone contiguous view reshape flatten squeeze unsqueeze permute transpose T t
        expand expand_as repeat chunk split narrow sum mean std var max min argmax argmin topk eq ne
        gt lt ge le all any abs exp log sqrt pow square clamp clip add sub mul div add_ sub_ mul_
        div_ fill_ zero_ copy_ normal_ uniform_ matmul mm bmm dot einsum where masked_fill data
        register_hook retain_grad is_cuda pin_memory stride is_contiguous data_ptr new_zeros
        new_tensor relu sigmoid tanh softmax log_softmax norm nonzero unique sort argsort cumsum
        round floor sign scatter_ gather index_select flip roll unbind view_as reshape_as allclose
        equal isnan isfinite element_size
    """,
    "module": """
        parameters named_parameters children named_children modules named_modules buffers
        named_buffers get_submodule get_parameter get_buffer add_module register_module
        register_buffer register_parameter register_forward_hook register_forward_pre_hook
        register_full_backward_hook register_backward_hook state_dict load_state_dict train eval
        to cuda cpu float half double requires_grad_ zero_grad apply forward training extra_repr
        compile share_memory type
    """,
    "nn": """
        Module Parameter Sequential ModuleList ModuleDict ParameterList ParameterDict Identity
        Linear Bilinear LazyLinear Conv1d Conv2d Conv3d ConvTranspose2d LazyConv2d Flatten Unflatten
        BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm GroupNorm LayerNorm InstanceNorm1d
        InstanceNorm2d LocalResponseNorm ReLU ReLU6 LeakyReLU PReLU ELU CELU SELU GELU SiLU Mish
        Sigmoid LogSigmoid Tanh Hardtanh Hardswish Hardsigmoid Softplus Softsign Softmax Softmax2d
        LogSoftmax GLU Threshold MaxPool1d MaxPool2d AvgPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d
        AdaptiveMaxPool2d MaxUnpool2d ZeroPad2d ConstantPad2d ReflectionPad2d ReplicationPad2d
        Upsample UpsamplingNearest2d UpsamplingBilinear2d PixelShuffle PixelUnshuffle Dropout
        Dropout2d Dropout3d AlphaDropout Embedding RNN LSTM GRU Transformer TransformerEncoder
        MultiheadAttention CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss
        BCEWithLogitsLoss KLDivLoss CTCLoss TripletMarginLoss CosineEmbeddingLoss
        MarginRankingLoss DataParallel parallel functional init utils Unfold Fold
    """,
    "functional": """
        relu relu6 leaky_relu elu gelu silu sigmoid tanh softmax log_softmax hardswish hardsigmoid
        hardtanh softplus mish prelu linear conv1d conv2d conv3d conv_transpose2d max_pool2d
        avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d interpolate upsample pad pixel_shuffle
        grid_sample affine_grid dropout dropout2d batch_norm group_norm layer_norm instance_norm
        normalize cosine_similarity one_hot embedding cross_entropy nll_loss mse_loss l1_loss
        smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        triplet_margin_loss unfold fold scaled_dot_product_attention
    """,
    "init": """
        calculate_gain uniform_ normal_ constant_ ones_ zeros_ eye_ dirac_ xavier_uniform_
        xavier_normal_ kaiming_uniform_ kaiming_normal_ trunc_normal_ orthogonal_ sparse_
        kaiming_normal xavier_uniform
    """,
    "utils": """
        clip_grad_norm_ clip_grad_value_ clip_grad_norm parameters_to_vector vector_to_parameters
        weight_norm spectral_norm prune rnn data checkpoint tensorboard
    """,
    "optim": """
        SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam LBFGS Optimizer lr_scheduler
        swa_utils
    """,
    "lr_scheduler": """
        StepLR MultiStepLR ExponentialLR CosineAnnealingLR LinearLR LambdaLR OneCycleLR CyclicLR
        ReduceLROnPlateau SequentialLR CosineAnnealingWarmRestarts ConstantLR PolynomialLR
    """,
    "data": """
        DataLoader Dataset TensorDataset Subset random_split ConcatDataset IterableDataset Sampler
        RandomSampler SequentialSampler WeightedRandomSampler BatchSampler DistributedSampler
        default_collate get_worker_info ImageFolder MNIST CIFAR10 transforms
    """,
    "distributed": """
        init_process_group destroy_process_group get_rank get_world_size all_reduce all_gather
        broadcast barrier is_initialized is_available launch reduce ReduceOp
    """,
    "transforms": """
        v2 PILToTensor ConvertImageDtype RandAugment AutoAugment TrivialAugmentWide
        Compose Normalize RandomCrop CenterCrop RandomHorizontalFlip RandomVerticalFlip ToTensor
        Resize RandomResizedCrop ColorJitter RandomErasing RandomRotation Lambda Grayscale
    """,
}  # fmt: skip
HOLDERS = {
    "oc": oc, "tensor": oc.tensor([1.0, 2.0]), "module": nn.Linear(2, 2),
    "trainer": oc.Trainer(nn.Linear(2, 2)), "nn": nn,
    "functional": F, "init": nn.init, "utils": nn.utils, "optim": oc.optim,
    "lr_scheduler": oc.optim.lr_scheduler, "data": oc.data, "transforms": oc.data.transforms,
    "distributed": oc.distributed,
}  # fmt: skip
ALL = [(place, name) for place, names in WORDS.items() for name in names.split()]


def test_there_are_enough_words():
    assert len(ALL) > 250
    assert len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("place", WORDS)
def test_a_word_is_there_or_its_replacement_is_named(place):
    silent = []
    for name in WORDS[place].split():
        try:
            getattr(HOLDERS[place], name)
        except AttributeError as error:
            line = INSTEAD[place].get(name, "")
            if len(line) < 4 or line not in str(error) or repr(name) not in str(error):
                silent.append(name)
    assert silent == []


@pytest.mark.parametrize("place", INSTEAD)
def test_no_line_stands_for_a_word_that_is_there(place):
    assert [name for name in INSTEAD[place] if hasattr(HOLDERS[place], name)] == []


SLIPS = {
    "oc": ("zeross", "zeros"), "tensor": ("rehsape", "reshape"), "module": ("paramters",
    "parameters"), "nn": ("Conv2D", "Conv2d"), "functional": ("max_pool2D", "max_pool2d"),
    "init": ("kaiming_normal__", "kaiming_normal_"), "utils": ("clip_grad_norms_",
    "clip_grad_norm_"), "optim": ("Adm", "Adam"), "lr_scheduler": ("StepLr", "StepLR"),
    "data": ("Dataloader", "DataLoader"), "transforms": ("Compos", "Compose"),
}  # fmt: skip


@pytest.mark.parametrize("place", SLIPS)
def test_any_other_name_is_told_the_nearest_one(place):
    slip, near = SLIPS[place]
    with pytest.raises(AttributeError, match=f"did you mean {near!r}"):
        getattr(HOLDERS[place], slip)
    assert not hasattr(HOLDERS[place], "_repr_nothing_")


@pytest.mark.parametrize("place", ["nn.Linear", "optim.SGD", "optim.schedules.StepLR",
                                   "data.DataLoader", "functional.mse_loss"])  # fmt: skip
def test_a_name_of_another_room_is_told_where_it_is(place):
    with pytest.raises(AttributeError, match=f": oc.{place}"):
        getattr(oc, place.rpartition(".")[-1])


def test_a_models_own_parts_are_near_too():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match="did you mean 'classifier'"):
        Net().clasifier  # noqa: B018


def headed(t):
    """A network whose last layer is another one, as in tutorials of transfer learning."""
    net = t.nn.Sequential(t.nn.Linear(2, 3), t.nn.ReLU())
    net[-1] = t.nn.Tanh()
    return net


def changed(t, kind):
    """Modules in a list that is changed in each way."""
    parts = kind(*([t.nn.ReLU()],) if kind is t.nn.ModuleList else (t.nn.ReLU(),))
    parts.append(t.nn.Linear(2, 2)).extend([t.nn.ReLU(), t.nn.Linear(2, 2)])
    parts.insert(0, t.nn.Linear(2, 2))
    parts.insert(2, t.nn.Tanh())
    parts[1] = t.nn.Sigmoid()
    del parts[2]
    return parts


#: {words: (what is computed by either library, the value)}; t is the library.
VALUES = {
    "a row": (lambda t: t.arange(6).reshape(2, 3)[1], np.array([3, 4, 5])),
    "a column": (lambda t: t.arange(6).reshape(2, 3)[:, -1], np.array([2, 5])),
    "an axis more": (lambda t: t.arange(4)[None, 1:, None], np.array([[[1], [2], [3]]])),
    "an ellipsis": (lambda t: t.arange(8).reshape(2, 2, 2)[..., 0], np.array([[0, 2], [4, 6]])),
    "one number of it": (lambda t: t.arange(6).reshape(2, 3)[1, 2].item(), 5),
    "a loop over it": (lambda t: [float(r.sum()) for r in t.arange(4.0).reshape(2, 2)], [1, 5]),
    "unpacked": (lambda t: (lambda a, b: b)(*t.ones(2, 3)), np.ones(3, np.float32)),
    "in_features": (lambda t: t.nn.Linear(3, 2).in_features, 3),
    "out_features": (lambda t: t.nn.Linear(3, 2).out_features, 2),
    "channels": (
        lambda t: [
            (conv.in_channels, conv.out_channels, conv.kernel_size)
            for conv in (t.nn.Conv2d(4, 6, (3, 5), groups=2),
                         t.nn.ConvTranspose2d(4, 6, (3, 5), groups=2))
        ],
        [(4, 6, (3, 5))] * 2,
    ),
    "a head of one's own": (lambda t: list(headed(t).state_dict()), ["0.weight", "0.bias"] ),
    "modules put in and out": (
        lambda t: [name for kind in (t.nn.Sequential, t.nn.ModuleList) for name, _ in changed(
            t, kind).named_parameters()],
        [f"{place}.{name}" for place in (0, 2, 4) for name in ("weight", "bias")] * 2,
    ),
    "zeros": (lambda t: t.zeros(2, 3), np.zeros((2, 3), np.float32)),
    "zeros of a tuple": (lambda t: t.zeros((2, 3)), np.zeros((2, 3), np.float32)),
    "zeros of whole numbers": (lambda t: t.zeros(2, dtype=t.int64), np.zeros(2, np.int64)),
    "a zero": (lambda t: t.zeros(()), np.float32(0)),
    "ones": (lambda t: t.ones(2, 2), np.ones((2, 2), np.float32)),
    "ones_like": (lambda t: t.ones_like(t.zeros(3)), np.ones(3, np.float32)),
    "zeros_like": (lambda t: t.zeros_like(t.arange(3)), np.zeros(3, np.int64)),
    "full": (lambda t: t.full((2,), 7.0), np.full(2, 7, np.float32)),
    "full of whole numbers": (lambda t: t.full((2,), 7), np.full(2, 7, np.int64)),
    "full_like": (lambda t: t.full_like(t.zeros(2), 3), np.full(2, 3, np.float32)),
    "arange": (lambda t: t.arange(4), np.arange(4)),
    "arange from": (lambda t: t.arange(1, 6, 2), np.array([1, 3, 5])),
    "arange of floats": (lambda t: t.arange(0, 1, 0.25), np.float32([0, 0.25, 0.5, 0.75])),
    "arange of type": (lambda t: t.arange(3, dtype=t.float32), np.float32([0, 1, 2])),
    "linspace": (lambda t: t.linspace(0, 1, 5), np.float32([0, 0.25, 0.5, 0.75, 1])),
    "eye": (lambda t: t.eye(2, 3), np.float32([[1, 0, 0], [0, 1, 0]])),
    "as_tensor": (lambda t: t.as_tensor([1.0, 2.0]), np.float32([1, 2])),
    "from_numpy": (lambda t: t.from_numpy(np.float32([1, 2])), np.float32([1, 2])),
    "cat": (lambda t: t.cat([t.zeros(1, 2), t.ones(1, 2)], 1), np.float32([[0, 0, 1, 1]])),
    "flatten": (lambda t: t.flatten(t.zeros(2, 3, 4), 1), np.zeros((2, 12), np.float32)),
    "relu": (lambda t: t.relu(t.tensor([-1.0, 2.0])), np.float32([0, 2])),
    "sigmoid": (lambda t: t.sigmoid(t.zeros(2)), np.float32([0.5, 0.5])),
    "softmax": (lambda t: t.softmax(t.zeros(1, 4), 1), np.full((1, 4), 0.25, np.float32)),
    "float": (lambda t: float(t.tensor(1.5)), 1.5),
    "float of one": (lambda t: float(t.tensor([[2.5]])), 2.5),
    "int": (lambda t: int(t.tensor(3)), 3),
    "int of a float": (lambda t: int(t.tensor(-2.7)), -2),
    "bool": (lambda t: bool(t.tensor(0.0)), False),
    "item": (lambda t: t.tensor([4.0]).item(), 4.0),
    "format": (lambda t: f"{t.tensor(1.23456):.3f}", "1.235"),
    "format with a width": (lambda t: f"{t.tensor(2):>5d}", "    2"),
    "format of nothing": (lambda t: f"{t.tensor(1.5)}", "1.5"),
    "a percentage": (lambda t: f"{t.tensor(0.125):.1%}", "12.5%"),
    "less": (lambda t: bool(t.tensor(1.0) < 2), True),
    "more": (lambda t: bool(t.tensor(1.0) > t.tensor(2.0)), False),
    "at least": (lambda t: bool(t.tensor(3) >= 3), True),
    "the best": (lambda t: float(min(t.tensor(2.0), t.tensor(1.0))), 1.0),
    "a sum of floats": (lambda t: sum([t.tensor(1.0).item(), 2.0]), 3.0),
    "tolist": (lambda t: t.tensor([[1.0, 2.0]]).tolist(), [[1.0, 2.0]]),
    "tolist of one": (lambda t: t.tensor(3).tolist(), 3),
    "dim": (lambda t: t.zeros(2, 3).dim(), 2),
    "numel": (lambda t: t.zeros(2, 3).numel(), 6),
    "nelement": (lambda t: t.zeros(2, 3).nelement(), 6),
    "size": (lambda t: tuple(t.zeros(2, 3).size()), (2, 3)),
    "size of an axis": (lambda t: t.zeros(2, 3).size(1), 3),
    "requires_grad_": (lambda t: t.zeros(2).requires_grad_().requires_grad, True),
    "a leaf": (lambda t: t.zeros(2).requires_grad_().is_leaf, True),
    "no leaf": (lambda t: (t.zeros(2).requires_grad_() * 2).is_leaf, False),
    "detached": (lambda t: (t.ones(2).requires_grad_() * 2).detach().requires_grad, False),
    "zeros_": (lambda t: t.nn.init.zeros_(t.nn.Parameter(t.ones(2))), np.zeros(2, np.float32)),
    "ones_": (lambda t: t.nn.init.ones_(t.nn.Parameter(t.zeros(2))), np.ones(2, np.float32)),
    "constant_": (
        lambda t: t.nn.init.constant_(t.nn.Parameter(t.zeros(2)), 0.3), np.full(2, 0.3, np.float32)
    ),
    "eye_": (lambda t: t.nn.init.eye_(t.nn.Parameter(t.zeros(2, 2))), np.eye(2, dtype=np.float32)),
    "dirac_": (
        lambda t: t.nn.init.dirac_(t.nn.Parameter(t.zeros(2, 1, 3)), 2),
        np.float32([[[0, 1, 0]], [[0, 1, 0]]]),
    ),
    "gain of relu": (lambda t: t.nn.init.calculate_gain("relu"), 2**0.5),
    "gain of leaky_relu": (lambda t: t.nn.init.calculate_gain("leaky_relu", 0.2), 1.3867504906),
    "gain of tanh": (lambda t: t.nn.init.calculate_gain("tanh"), 5 / 3),
    "a part": (lambda t: type(net(t).get_submodule("0.1")).__name__, "ReLU"),
    "itself": (lambda t: type(net(t).get_submodule("")).__name__, "Sequential"),
    "a parameter": (lambda t: tuple(net(t).get_parameter("0.0.weight").shape), (3, 2)),
    "a buffer": (lambda t: tuple(net(t).get_buffer("1.running_mean").shape), (3,)),
    "names of children": (lambda t: [name for name, _ in net(t).named_children()], ["0", "1"]),
    "on the cpu": (lambda t: type(net(t).cpu().float()).__name__, "Sequential"),
    "an average of losses": (
        lambda t: round(float(t.nn.functional.mse_loss(t.ones(2), t.zeros(2))), 3), 1.0
    ),
}  # fmt: skip


def net(t):
    return t.nn.Sequential(t.nn.Sequential(t.nn.Linear(2, 3), t.nn.ReLU()), t.nn.BatchNorm1d(3))


def same(found, wanted):
    if isinstance(wanted, np.ndarray | np.generic):
        array = np.asarray(found.detach().numpy())
        return array.dtype == wanted.dtype and array.shape == wanted.shape and np.allclose(
            array, wanted, 1e-6, 0)  # fmt: skip
    if isinstance(wanted, float):
        return isinstance(found, float) and abs(found - wanted) < 1e-6
    return type(found) is type(wanted) and found == wanted


@pytest.mark.parametrize("words", VALUES)
def test_a_word_has_pytorchs_value(words):
    computed, wanted = VALUES[words]
    assert same(computed(oc), wanted)


#: {name in nn.init: (arguments, deviation, bound or None)} of weights (64, 32, 3, 3).
FAN_IN, FAN_OUT = 32 * 9, 64 * 9
DRAWN = {
    "normal_": ((0.0, 0.5), 0.5, None),
    "uniform_": ((-0.3, 0.3), 0.6 / 12**0.5, 0.3),
    "kaiming_normal_": ((0, "fan_out", "relu"), (2 / FAN_OUT) ** 0.5, None),
    "kaiming_uniform_": ((5**0.5,), FAN_IN**-0.5 / 3**0.5, FAN_IN**-0.5),
    "xavier_normal_": ((), (2 / (FAN_IN + FAN_OUT)) ** 0.5, None),
    "xavier_uniform_": (
        (2.0,), 2 * (2 / (FAN_IN + FAN_OUT)) ** 0.5, 2 * (6 / (FAN_IN + FAN_OUT)) ** 0.5
    ),
    "trunc_normal_": ((0.0, 1.0, -2.0, 2.0), 0.87962566, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_first_values_have_pytorchs_distribution(name):
    arguments, deviation, bound = DRAWN[name]
    oc.manual_seed(3)
    weight = nn.Parameter(np.zeros((64, 32, 3, 3)))
    assert getattr(nn.init, name)(weight, *arguments) is weight
    values = weight.numpy()
    assert abs(values.std() / deviation - 1) < 0.02
    assert abs(values.mean()) < 0.02 * deviation
    if bound is not None:
        assert 0.98 * bound < np.abs(values).max() <= bound * (1 + 1e-6)
    oc.manual_seed(3)
    again = nn.Parameter(np.zeros((64, 32, 3, 3)))
    assert np.array_equal(getattr(nn.init, name)(again, *arguments).numpy(), values)


def test_orthogonal_rows_are():
    for shape in ((4, 6), (6, 4), (3, 2, 2, 2)):
        flat = nn.init.orthogonal_(nn.Parameter(np.zeros(shape)), 2.0).numpy().reshape(shape[0], -1)
        product = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        assert np.allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_random_tensors_follow_the_seed():
    oc.manual_seed(1)
    first = [oc.rand(3).tolist(), oc.randn(2, 2).tolist(), oc.randint(5, (4,)).tolist(),
             oc.randperm(6).tolist()]  # fmt: skip
    oc.manual_seed(1)
    again = [oc.rand(3).tolist(), oc.randn(2, 2).tolist(), oc.randint(0, 5, (4,)).tolist(),
             oc.randperm(6).tolist()]  # fmt: skip
    assert first == again
    assert sorted(first[3]) == list(range(6))
    assert set(first[2]) <= set(range(5))


WRONG = {
    "a float of many": (lambda: float(oc.zeros(2)), ShapeError),
    "an item of none": (lambda: oc.zeros(0).item(), ShapeError),
    "a format of many": (lambda: f"{oc.zeros(2):.3f}", TypeError),
    "a comparison of many": (lambda: oc.zeros(2) < 1, ShapeError),
    "another element type": (lambda: oc.zeros(2, dtype="float16"), ConfigError),
    "no shape": (lambda: oc.zeros(2, 1.5), ConfigError),
    "a step of 0": (lambda: oc.arange(0, 3, 0), ConfigError),
    "no number between": (lambda: oc.randint(3, 3, (2,)), ConfigError),
    "no history to leave": (
        lambda: (oc.zeros(2).requires_grad_() * 2).requires_grad_(False), AutogradError
    ),
    "no such part": (lambda: net(oc).get_submodule("0.7"), AttributeError),
    "no such parameter": (lambda: net(oc).get_parameter("0.0.wieght"), AttributeError),
    "no fan of a bias": (lambda: nn.init.kaiming_normal_(nn.Parameter(np.zeros(3))), ShapeError),
    "no such gain": (lambda: nn.init.calculate_gain("swish"), ConfigError),
    "align_corners of nearest": (
        lambda: F.interpolate(oc.zeros(1, 1, 2, 2), 4, align_corners=False), ConfigError
    ),
    "three factors": (
        lambda: F.interpolate(oc.zeros(1, 1, 2, 2), scale_factor=(1, 2, 3)), ConfigError
    ),
    "a factor below 0": (
        lambda: F.interpolate(oc.zeros(1, 1, 2, 2), scale_factor=-1.0), ConfigError
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused(what):
    use, error = WRONG[what]
    with pytest.raises(error):
        use()


#: PyTorch's, recorded: row 0 of arange(5) resized to floor(5 * factor) values.
RESIZED = {
    ("nearest", 1.5): [0, 0, 1, 2, 2, 3, 4],
    ("nearest", 0.7): [0, 1, 2],
    ("bilinear", 1.5): [0, 0.5, 1.1666666, 1.8333334, 2.5, 3.1666667, 3.8333333],
    ("bilinear", 0.7): [0.2142857, 1.6428571, 3.0714285],
}


@pytest.mark.parametrize(("mode", "factor"), RESIZED)
def test_factors_may_be_pairs_and_fractions(mode, factor):
    rows = oc.arange(5, dtype=oc.float32).reshape(1, 1, 1, 5)
    found = F.interpolate(rows, scale_factor=(1, factor), mode=mode).numpy()[0, 0, 0]
    assert np.allclose(found, RESIZED[mode, factor], atol=1e-6)
    module = nn.Upsample(scale_factor=(2, 3))
    assert module(rows).shape == (1, 1, 2, 15)


def test_a_fraction_has_a_gradient():
    x = oc.rand(1, 1, 3, 5, requires_grad=True)
    F.interpolate(x, scale_factor=1.5, mode="bilinear").sum().backward()
    assert abs(float(x.grad.sum()) - 4 * 7) < 1e-4


def test_no_word_is_loaded_before_one_is_missing():
    script = "import sys, ooctrain; print('ooctrain.engine.torch_names' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


class Detaching(nn.Module):
    """Reads a parameter and a buffer without their history."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", np.float32([2, -1]))

    def forward(self, x):
        return self.layer(x) * self.scale.detach() + self.layer.bias.detach()


def test_what_is_registered_can_be_detached_in_a_step():
    """A traced step knew a parameter by its object, and refused its twin."""
    model = Detaching()
    x, y = np.float32([[1, 2, 3]]), np.float32([[0, 0]])
    loss = F.mse_loss(model(oc.tensor(x)), oc.tensor(y))
    loss.backward()
    expected = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    step = oc.trace(model, x.shape, "mse", optimizer=None, target_shape=y.shape)
    run = oc.execute(oc.plan(step, "100%"), model, (x, y))
    assert float(run.loss) == loss.item()
    for name, gradient in expected.items():
        np.testing.assert_array_equal(run.gradients[name], gradient)
