"""An f that estimators may evaluate but not differentiate."""

import jax


def black_box(f):
    """f, with a derivative with respect to its argument that raises."""

    @jax.custom_jvp
    def indifferentiable(b):
        return f(b)

    @indifferentiable.defjvp
    def _raise(primals, tangents):
        raise AssertionError("f was differentiated with respect to b")

    return indifferentiable
