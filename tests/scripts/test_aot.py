"""What scripts.aot counts, and that no program calls back to Python; compiling for a TPU needs libtpu, so not here."""

import json

import jax
import jax.numpy as jnp
import pytest
from absl import flags

from scripts import aot

HLO = """HloModule jit_f

%fused (p: f32[5,2000]) -> f32[5,2000] {
  %p = f32[5,2000]{1,0} parameter(0)
  ROOT %m = f32[5,2000]{1,0} multiply(%p, %p)
}

%body.1 (arg: (s32[], f32[5,2000])) -> (s32[], f32[5,2000]) {
  %arg = (s32[], f32[5,2000]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%arg), index=0
  %add.1 = s32[] add(%n, %n)
  %x = f32[5,2000]{1,0} get-tuple-element(%arg), index=1
  %big = f32[5,2000]{1,0} fusion(%x), kind=kLoop, calls=%fused
  %pair = (f32[2]{0}, f32[3]{0}) custom-call(%big), custom_call_target="Sharding"
  ROOT %t = (s32[], f32[5,2000]{1,0}) tuple(%add.1, %big)
}

ENTRY %main (a: f32[5,2000]) -> f32[5,2000] {
  %w = (s32[], f32[5,2000]{1,0}) while(%a), condition=%c, body=%body.1
}
"""


def test_the_operations_of_a_step():
    found = aot.count_operations(HLO)
    assert found["operations"] == 3
    assert found["small_operations"] == 2
    assert found["kinds"] == {"add": 1, "fusion": 1, "custom-call": 1}
    assert aot.custom_calls(HLO) == {"Sharding": 1}


def test_a_callback_is_found():
    def program(x):
        jax.debug.print("{}", x)
        return x

    shape = (jax.ShapeDtypeStruct((), jnp.float32),)
    with pytest.raises((NotImplementedError, ValueError)):  # some kinds cannot be lowered for another platform
        aot.lowered_for_cuda(program, shape)
    assert aot.callbacks({"xla_python_gpu_callback": 1, "Sharding": 2}) == ["xla_python_gpu_callback"]


def test_a_config_is_lowered_for_cuda(tmp_path, capsys):
    values = flags.FlagValues()
    aot.define_flags(values)
    values(["aot", "--only=layers:2", "--topology=", "--seeds=2", f"--out={tmp_path}"])
    aot.main(["aot"], values)
    row = json.loads((tmp_path / "aot.json").read_text())["layers:2"]
    assert row["cuda"]["stablehlo_operations"] > 100
    assert aot.callbacks(row["cuda"]["custom_calls"]) == []
    assert "| `layers:2` | – |" in (tmp_path / "README.md").read_text()
