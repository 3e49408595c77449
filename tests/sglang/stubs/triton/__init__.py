# SPDX-License-Identifier: Apache-2.0
"""A stand-in for triton with nothing in it: SGLang's modules import it, and none of its kernels runs on a CPU.

Every name below `triton` exists: one with a capital letter is a class, `driver` has no active one, any other is an
empty object.  A decorator leaves the function as it is.  To launch a kernel (`kernel[grid](...)`) fails: a function has
no items.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0"
__path__ = []


class Nothing:
    """Stands for any class, function, decorator or constant of triton."""

    def __init__(self, *args, **kwargs):
        """Takes any arguments and keeps none."""

    def __call__(self, *args, **kwargs):
        """Gives a decorated function back unchanged, and an empty object for every other call."""
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return Nothing()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return NoDriver() if name == "driver" else Nothing()

    def __mro_entries__(self, bases):
        return ()

    def __or__(self, other):
        return self

    __ror__ = __or__


class NoDriver:
    """`triton.runtime.driver` where there is no GPU: SGLang asks for the active one and takes the error for a CPU."""

    @property
    def active(self):
        """No driver is."""
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def stand_in(name):
    """Returns what a module has under `name`; special names are missing, as in a plain module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Nothing,), {}) if name[0].isupper() else Nothing()


class _Module(types.ModuleType):
    """A module below `triton` that has every name."""

    def __getattr__(self, name):
        return NoDriver() if name == "driver" else stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below `triton`."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        """There is nothing to execute."""


def __getattr__(name):
    return stand_in(name)


sys.meta_path.append(_Finder())
