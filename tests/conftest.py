"""What all tests share."""

import jax
import pytest


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
