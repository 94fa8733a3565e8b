import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def programs():
    """Those of one module are of no use to another here, and thousands of them take gigabytes."""
    yield
    jax.clear_caches()
