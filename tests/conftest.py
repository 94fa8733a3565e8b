"""What all tests share."""

import os

# Compiling is most of what the tests do. XLA's older emitters compile two to three times as fast as
# those that it takes by default for a CPU; their programs differ in last digits. XLA reads this
# once, at its first program.
FLAG = "--xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{FLAG} {os.environ.get('XLA_FLAGS', '')}".strip()

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def compilation(request):
    """As users have it, but where only control flow is tested and compiling is nearly all there is.

    What a program computes then differs in its last digits; the numerical kernels' own tests, and
    those that compare programs bit for bit (`compiled_quickly(False)`), are compiled as usual.
    """
    marker = request.node.get_closest_marker("compiled_quickly")
    quick = marker is not None and marker.args != (False,)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quick or before)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
