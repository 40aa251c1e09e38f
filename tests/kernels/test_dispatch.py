"""The table of forms: what a device gets, and that nothing falls back in silence."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from kernels import OPS, dispatch


def test_importing_the_package_loads_neither_torch_nor_triton():
    program = (
        "import sys, kernels, kernels.dispatch; print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize("form", dispatch.TABLE, ids=lambda form: f"{form.op}:{form.name}")
def test_every_target_exists_without_triton(form):
    module, function = form.target.split(":")
    assert callable(getattr(import_module(module), function))


def test_every_op_has_a_form_for_the_cpu():
    for op in {form.op for form in dispatch.TABLE}:
        assert dispatch.choose(op, dispatch.CPU).name in ("reference", "emulated")


def test_every_folder_is_in_the_table():
    assert {form.op.split(".")[0] for form in dispatch.TABLE} == set(OPS)


def test_an_unknown_device_is_an_error_that_names_the_forms():
    with pytest.raises(
        dispatch.NoForm, match=r"no form of rms_norm for compute capability 7\.5; there is: triton, reference"
    ):
        dispatch.choose("rms_norm", (7, 5))


def test_the_plain_form_may_be_asked_for_anywhere_but_a_fast_one_only_where_it_fits():
    assert dispatch.choose("nvfp4.linear", (7, 5), name="reference").name == "reference"
    with pytest.raises(dispatch.NoForm):
        dispatch.choose("nvfp4.linear", dispatch.CPU, name="stream")


def test_the_boot_log_says_what_was_never_run():
    assert "nvfp4.linear: reference" in dispatch.describe("cpu")
    assert not dispatch.choose("nvfp4.linear_w4a4", dispatch.BLACKWELL).measured
