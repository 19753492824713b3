"""For each intrinsic the function that replaces it where there is no GPU.

The emulator looks an intrinsic up in `TWINS` by identity, so it finds it under whatever name a
kernel imports it. Read next: `intrinsics.py`, `layers/kernels/cuda/conv/tile_product.py`.
"""

from __future__ import annotations

from types import MappingProxyType

from ooctrain.layers.kernels.cuda.conv import tensor_core, tile_product
from ooctrain.layers.kernels.cuda.runtime import intrinsics

TWINS = MappingProxyType({
    intrinsics.fma: intrinsics.fma_twin,
    intrinsics.ld4: intrinsics.ld4_twin,
    intrinsics.ld4_bytes: intrinsics.ld4_bytes_twin,
    intrinsics.st4_bytes: intrinsics.st4_bytes_twin,
    intrinsics.st4: intrinsics.st4_twin,
    intrinsics.store_column: intrinsics.store_column_twin,
    tensor_core.round_tf32: tensor_core.round_tf32_twin,
    tile_product.product_128: tile_product.product_128_twin,
    tile_product.product_64: tile_product.product_64_twin,
    tile_product.long_product_64: tile_product.long_product_64_twin,
})  # fmt: skip
