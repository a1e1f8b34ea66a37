# SPDX-License-Identifier: Apache-2.0
"""Exact attention over keys and values that may be spread over ranks: arXiv:2408.04093.

    out, lse = attention(q, k, v)                  one call, on the CPU
    out, lse = merge(o1, lse1, o2, lse2)           two disjoint sets of keys, from any kernel
    layer = Attention(group=..., heads=..., ...)   a cache that grows, alone or over a group of torch.distributed, or comm=: of mpi4py
    energy, energy_gradient, moments               the functions of the paper, in double
    diagnose(q, shards, partials, out, lse)        is another engine's decode over ranks right, and which fault explains it

Arrays are NumPy's, PyTorch's, JAX's or any other's with __dlpack__, in memory of the host, or for an Attention with backend="cuda" all on
its GPU, but for JAX's. They are read in place, and results are arrays of the kind of the first argument, in the same memory, or NumPy's
where its module has no asarray(). Arrays that require a gradient, and those of numpy.ma, are refused. Shapes: q [b, n_h, l, d_h],
k [b, n_kv, n, d_h], v [b, n_kv, n, d_v]; lse is natural. None is the default of an argument; 0 is a value, and refused where it has no meaning.
"""
import contextlib
import ctypes
import operator
import os
import pathlib
import sys

import numpy

from . import _comm

__all__ = ["Attention", "TransportError", "attention", "diagnose", "energy", "energy_gradient", "error_bound", "merge", "moments"]


class TransportError(RuntimeError):
    """A message is late or wrong, or another rank has failed: close the Attention on every rank.

    Over a group, what its functions raised is the __cause__. A group that timed out is not used again: its messages may still arrive.
    """


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Setup(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("size", "batch", "heads", "kv_heads", "head_dim", "value_dim", "most_queries")] + [
        ("key_type", _DataType), ("value_type", _DataType), ("scale", ctypes.c_double), ("algorithm", ctypes.c_char_p),
        ("backend", ctypes.c_char_p), ("n_threads", ctypes.c_int32), ("ranks_per_node", ctypes.c_int32), ("comm", ctypes.c_void_p),
        ("timeout", ctypes.c_double), ("k_scale", ctypes.c_void_p), ("v_scale", ctypes.c_void_p), ("n_pages", ctypes.c_int64),
        ("page_window", ctypes.c_int64), ("page_sinks", ctypes.c_int64), ("values_in_keys", ctypes.c_int32),
        ("has_scale", ctypes.c_int32), ("capacity", ctypes.c_int64), ("refusal", ctypes.c_char_p), ("callbacks", ctypes.c_void_p), ("range_ends", ctypes.c_void_p),
        ("no_shared_memory", ctypes.c_int32), ("skips_comparison", ctypes.c_int32), ("transport", ctypes.c_char_p),
        ("portable", ctypes.c_int32)]


class _Seen(ctypes.Structure):
    _fields_ = [("causal", ctypes.c_int32), ("window", ctypes.c_int64), ("sinks", ctypes.c_int64), ("sink", ctypes.c_void_p),
                ("mask", ctypes.c_void_p), ("softcap", ctypes.c_double)]


class _Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("dtype", _DataType),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


_TYPES = {"float64": (2, 64), "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float8_e4m3fn": (10, 8)}
_FORMS = {"natural": 0, "base two": 1, "natural, inf is empty": 2}
_OF_APPEND, _OF_RESHARD = 1, 2
_ERRORS = {1: ValueError, 2: IndexError, 3: TransportError, 4: MemoryError, 6: TransportError}


def _load():
    """The library beside this file, or the one that a build has left where TREE_ATTN_LIBRARY says."""
    path = os.environ.get("TREE_ATTN_LIBRARY", pathlib.Path(__file__).resolve().parent / "libtree_attn.so")
    library = ctypes.CDLL(str(path))
    library.ta_error.restype = library.ta_version.restype = library.ta_mpi.restype = ctypes.c_char_p
    tensor, handle, i64, i32, seen = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.POINTER(_Seen)
    for name, types in {
            "attend": [tensor] * 3 + [ctypes.c_double, seen] + [tensor] * 2 + [i32],
            "oracle": [tensor] * 4 + [ctypes.c_double, seen] + [tensor] * 4 + [i32],
            "error_bound": [tensor] * 3 + [ctypes.c_double, seen] + [ctypes.c_double] * 3 + [tensor, i32],
            "moments": [tensor] * 6,
            "merge": [tensor] * 4 + [i32] + [tensor] * 2,
            "open": [ctypes.POINTER(_Setup), ctypes.POINTER(handle)],
            "close": [handle],
            "abandon": [handle],
            "append": [handle, i64, i64, tensor, tensor],
            "use_stream": [handle, ctypes.c_void_p, i32],
            "truncate": [handle, i64, i64],
            "length": [handle, i64, ctypes.POINTER(i64)],
            "holds": [handle, i64, ctypes.POINTER(i32)],
            "step": [handle, tensor, seen] + [tensor] * 2,
            "step_by_heads": [handle, tensor, seen] + [tensor] * 2,
            "start": [handle, tensor, seen],
            "progress": [handle, ctypes.POINTER(i32)],
            "finish": [handle, tensor, tensor],
            "share": [handle, i64, i64, i64],
            "reshard": [handle, ctypes.c_int32, tensor],
            "combine": [handle, tensor, tensor, i32, i32, tensor, tensor],
            "refuse": [handle, ctypes.c_char_p, i32]}.items():
        getattr(library, f"ta_{name}").argtypes = types
    return library


_library = _load()
_library.ta_close.restype = None
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
__version__ = _library.ta_version().decode()


def _call(name, *arguments, device=None, callbacks=None):
    """Calls ta_<name>, see _prepared()."""
    _prepared(name, *arguments, device=device, callbacks=callbacks)()


def _prepared(name, *arguments, device=None, callbacks=None):
    """A call of ta_<name>, which raises what its status says, or what one of the callbacks has raised.

    Arrays go as DLPack tensors, which live as long as the call; flags at the end that are left out are 0.
    @raises what the arguments are refused for before they are in C
    """
    function = getattr(_library, f"ta_{name}")
    for x, kind in zip(arguments, function.argtypes):
        if kind is ctypes.c_void_p and not (x is None or hasattr(x, "__dlpack__") or isinstance(x, ctypes.c_void_p)):
            raise TypeError(f"an argument is of type {type(x).__name__}; an array with __dlpack__ is needed")
    capsules = [_dlpack(_plain(x), device) if hasattr(x, "__dlpack__") else x for x in arguments]
    tensors = [_pointer(x, b"dltensor") if type(x).__name__ == "PyCapsule" else x for x in capsules]

    def call(_alive=capsules):
        status = function(*tensors, *[0] * (len(function.argtypes) - len(tensors)))
        if status != 0:
            _fail(status, callbacks)
    return call


def _fail(status, callbacks):
    """Raises what a status says."""
    cause, line = None, _library.ta_error().decode(errors="replace")
    if callbacks is not None and _ERRORS.get(status) is TransportError:
        callbacks.group.is_lost = True
    if callbacks is not None and callbacks.error is not None:
        cause, callbacks.error = callbacks.error, None
        if not isinstance(cause, Exception):
            raise cause  # Ctrl-C
        line = line.rsplit("callback has failed", 1)[0] + f"callback has failed: {_line(cause).decode(errors='replace')}"
    raise _ERRORS.get(status, RuntimeError)(line) from cause


class _View:
    """A structure for tensors of PyTorch in memory of the host, which is filled again for each: __dlpack__ takes 6 us."""

    def __init__(self):
        self._axes, self._shape, self._stride, self._dtype = (ctypes.c_int64 * 8)(), None, None, None
        self._tensor = _Tensor(device_type=1)
        self._tensor.shape, self._tensor.strides = ctypes.addressof(self._axes), ctypes.addressof(self._axes) + 32
        self.address = ctypes.addressof(self._tensor)

    def set(self, x):
        """Fills it, and says whether it could."""
        if x.dtype is not self._dtype:
            name = str(x.dtype).split(".")[-1]
            if name not in _TYPES:
                return False
            self._tensor.dtype, self._dtype = _DataType(*_TYPES[name], 1), x.dtype
        shape, stride = x.shape, x.stride()
        if shape != self._shape or stride != self._stride:
            n = len(shape)
            if n > 4:
                return False
            self._axes[:n], self._axes[4:4 + n], self._tensor.ndim, self._shape, self._stride = shape, stride, n, shape, stride
        self._tensor.data = x.data_ptr()
        return True


def _is_plain_torch(x):
    """Whether an array is a tensor of PyTorch that lies in memory of the host as its data_ptr() says."""
    torch = sys.modules.get("torch")
    return torch is not None and type(x) is torch.Tensor and x.is_cpu and x.layout is torch.strided and not (x.requires_grad or x.is_neg())


def _line(error):
    """What an error says, in one line, for C."""
    return " ".join((str(error) or type(error).__name__).split()).encode(errors="replace")


def _dlpack(x, device=None):
    """The capsule of an array in memory of the host, or on a device of a type; asked for nothing before it has said where it is."""
    kind, index = map(int, x.__dlpack_device__())
    if kind in (1, 3):
        return x.__dlpack__()
    if kind != device:
        where = "the host" if device is None else f"the host or on device type {device}"
        raise ValueError(f"an array of {_kind(x)} is on device type {kind}, index {index}; arrays in memory of {where} are taken")
    return x.__dlpack__(stream=1) if kind == 2 else x.__dlpack__()  # 1: the default stream, on which the library reads and writes


def _integer(name, x, least=-2 ** 63, most=2 ** 63 - 1, error=ValueError):
    """An integer that C can hold. @raises TypeError for what is none, and an error with its name for one that is out of bounds"""
    n = operator.index(x)
    if not least <= n <= most:
        raise error(f"{name} is {n}; " + (f"at least {least} is needed" if n < least else f"at most {most} is possible"))
    return n


def _scale(x):
    """A factor of q.k and whether it is given, as C takes both."""
    return (0.0, 0) if x is None else (float(x), 1)


def _seen(causal, window, sinks, mask=None, softcap=None):
    """Which keys a query sees, and what becomes of scores. @returns an argument of _call(), and what has to live as long as the call"""
    learned = sinks if hasattr(sinks, "__dlpack__") else None
    capsule = _dlpack(_plain(learned)) if learned is not None else None
    first = 0 if learned is not None or sinks is None else _integer("sinks", sinks, 0)
    window = 0 if window is None else _integer("window", window, 1)
    of_mask = None if mask is None else _dlpack(_plain(mask))
    pointers = [x and _pointer(x, b"dltensor") for x in (capsule, of_mask)]
    return ctypes.byref(_Seen(bool(causal), window, first, *pointers, 0 if softcap is None else softcap)), (capsule, of_mask)


class _Writable:
    """The memory of an array of NumPy that is read only, which it exports only as writable; this library reads inputs alone."""

    def __init__(self, array):
        self._array = array  # keeps the memory
        self.__array_interface__ = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}


def _plain(x):
    """The array to export. @raises TypeError or ValueError where something that it says would be lost"""
    if isinstance(x, numpy.ma.MaskedArray):
        raise TypeError("an array of numpy.ma has a mask, which would be ignored: pass its filled() or its data")
    if getattr(x, "requires_grad", False):
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(x, torch.Tensor) or torch.is_grad_enabled():
            raise ValueError("an array requires a gradient, which the output would not have: pass its detach(), or call under torch.no_grad()")
        x = x.detach()
    return numpy.asarray(_Writable(x)) if isinstance(x, numpy.ndarray) and not x.flags.writeable else x


def _written(x):
    """An array of the caller that is to be written. @raises ValueError for one that its library says is constant"""
    if getattr(getattr(x, "flags", None), "writeable", True) is False or x is not None and _kind(x) in ("jax", "jaxlib"):
        raise ValueError(f"an array of {_kind(x)} in out is read only")
    return x


def _kind(x):
    """The name of the library whose array this is, or whose class its class extends."""
    names = [of.__module__.split(".")[0] for of in type(x).__mro__]
    return next((name for name in names if name in ("numpy", "torch", "jax", "jaxlib", "cupy")), names[0])


def _empty(like, shape, dtype=None):
    """An array that the library writes: PyTorch's or CuPy's, where `like` is, if it is one; else NumPy's."""
    if _kind(like) == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype), device=like.device)
    name = str(getattr(like, "dtype", None) if dtype is None else dtype).split(".")[-1]
    return (sys.modules["cupy"] if _kind(like) == "cupy" else numpy).empty(shape, name if name in ("float64", "float32", "float16") else "float32")


def _back(like, *arrays):
    """The results as arrays of the kind of `like`, if its module makes some."""
    if _kind(like) in ("jax", "jaxlib"):
        import jax.numpy
        arrays = tuple(jax.numpy.asarray(x).astype(like.dtype) if i == 0 else jax.numpy.asarray(x) for i, x in enumerate(arrays))
    elif _kind(like) not in ("torch", "numpy"):
        make = getattr(sys.modules.get(_kind(like)), "asarray", numpy.asarray)
        arrays = tuple(make(x) for x in arrays)
    return arrays[0] if len(arrays) == 1 else arrays


def _dtype_of(x):
    return str(getattr(x, "dtype", "float32")).split(".")[-1]


def _shape(x, n, name):
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{name} is of type {type(x).__name__}; an array with __dlpack__ is needed")
    if len(x.shape) not in (n if isinstance(n, tuple) else (n,)):
        raise ValueError(f"{name} has {len(x.shape)} axes; expected {' or '.join(map(str, n)) if isinstance(n, tuple) else n}")
    return tuple(x.shape)


def attention(q, k, v, scale=None, causal=False, window=None, sinks=None, order="contiguous", mask=None, softcap=None):
    """Attention of every query, on the CPU.

    scale: factor of q.k, 1 / sqrt(d_h) by default. causal: query j of l sees the keys up to n - l + j alone: the edge is aligned at the end
    of the keys, while is_causal of PyTorch's scaled_dot_product_attention aligns it at their beginning. window: it sees the last
    `window` of those, of which there is at least one. sinks: a number of first keys that it sees beside its window, or learned logits
    [n_h], keys of value 0. order: of the leaves of 64 keys in the tree of sums. An Attention deals its leaves, so the last bits of its step()
    are those of order="dealt", which copies the keys; the two differ beyond 128 keys. mask: [b or 1, n_h or 1, l, n], booleans, False where a
    key is not seen, or float32 that is added to scores. softcap: c of c tanh(s / c), before the mask. @returns out in the type of q, lse in
    float32
    """
    if order not in ("contiguous", "dealt"):
        raise ValueError(f"order is {order!r}; one of 'contiguous', 'dealt'")
    if order == "dealt":
        (b, n_h, _, d), (_, n_kv, _, d_v) = _shape(q, 4, "q"), _shape(v, 4, "v")
        with Attention(heads=n_h, kv_heads=n_kv, head_dim=d, value_dim=d_v, batch=b, dtype=_dtype_of(k), scale=scale) as layer:
            if (tuple(k.shape[:3]), _dtype_of(v)) != (tuple(v.shape[:3]), _dtype_of(k)) or k.shape[0] != b:
                raise ValueError(f"k is {_dtype_of(k)} {list(k.shape)} and v {_dtype_of(v)} {list(v.shape)} beside q {list(q.shape)}")
            for entry in range(b):
                layer.append(k[entry], v[entry], entry)
            return layer.step(q, causal, window, sinks, mask, softcap)
    seen, _capsule = _seen(causal, window, sinks, mask, softcap)
    b, n_h, l, _ = _shape(q, 4, "q")
    out, lse = _empty(q, (b, n_h, l, _shape(v, 4, "v")[3])), _empty(q, (b, n_h, l), "float32")
    scale, is_given = _scale(scale)
    _call("attend", q, k, v, scale, seen, out, lse, is_given)
    return _back(q, out, lse)


def merge(o1, lse1, o2, lse2, lse="natural"):
    """Attention over both of two disjoint sets of keys, from (o, lse) of each.

    If one set is empty, with an lse of -inf, o and natural lse of the other are returned as they are, bit for bit.

    lse: "natural", "base two" as FlashInfer has it, or "natural, inf is empty" as FlashAttention 2 has it. @returns out, natural lse
    """
    shape = _shape(o1, 4, "o1")
    out, of_both = _empty(o1, shape), _empty(o1, shape[:3], "float32")
    _call("merge", o1, lse1, o2, lse2, _one_of(_FORMS, "lse", lse), out, of_both)
    return _back(o1, out, of_both)


def _one_of(choices, what, name):
    if name not in choices:
        raise ValueError(f"{what} is {name!r}; one of {', '.join(map(repr, choices))}")
    return choices[name]


def energy(q, k, v, zeta, scale=1.0, causal=False, window=None, sinks=None):
    """F(zeta) = log sum_a exp(s_a + zeta.v_a) of every query: eq. (6), where the scale is part of q. @returns [b, n_h, l] in double"""
    seen, _capsule = _seen(causal, window, sinks)
    values = numpy.empty(_shape(q, 4, "q")[:3])
    scale, is_given = _scale(scale)
    _call("oracle", q, k, v, zeta, scale, seen, None, None, values, None, is_given)
    return _back(q, values)


def energy_gradient(q, k, v, zeta=None, scale=1.0, causal=False, window=None, sinks=None):
    """dF/dzeta, which is attention at zeta = 0: eq. (5). @returns [b, n_h, l, d_v] in double"""
    seen, _capsule = _seen(causal, window, sinks)
    gradient = numpy.empty((*_shape(q, 4, "q")[:3], _shape(v, 4, "v")[3]))
    zeta = numpy.zeros_like(gradient) if zeta is None else zeta
    scale, is_given = _scale(scale)
    _call("oracle", q, k, v, zeta, scale, seen, None, None, None, gradient, is_given)
    return _back(q, gradient)


def error_bound(q, k, v, scale=None, causal=False, window=None, sinks=None, n_additions=None, n_rescalings=0, output_roundoff=0):
    """The a-priori bound of the rounding errors of attention() for each component of its output, in double.

    n_additions, n_rescalings, output_roundoff: of another kernel with sums in float32, whose order and type differ.
    """
    if n_additions is not None and not n_additions > 0:
        raise ValueError(f"n_additions is {n_additions}; more than 0 are needed")
    seen, _capsule = _seen(causal, window, sinks)
    bound = numpy.empty((*_shape(q, 4, "q")[:3], _shape(v, 4, "v")[3]))
    scale, is_given = _scale(scale)
    _call("error_bound", q, k, v, scale, seen, n_additions or 0, n_rescalings, output_roundoff, bound, is_given)
    return _back(q, bound)


def moments(q, k, v, zeta=None):
    """Mean and covariance of the values under the weights of one query: first and second derivative of the energy, eq. (20).

    q [d_h] with the scale in it, k [n, d_h], v [n, d_v], zeta [d_v]. @returns [d_v] and [d_v, d_v] in double
    """
    d_v = _shape(v, 2, "v")[1]
    mean, covariance = numpy.empty(d_v), numpy.empty((d_v, d_v))
    _call("moments", q, k, v, zeta, mean, covariance)
    return _back(q, mean, covariance)


class Attention:
    """Attention over keys and values that are appended, over ranks or alone.

    group: a process group of torch.distributed, of gloo or of NCCL. comm: a communicator of mpi4py, of any MPI. All ranks make the same calls in the same order. Every rank passes all positions to append() and keeps those that it holds, which
    holds() says; it may pass None for others. Every rank gets the same output, with the bits of any other number of ranks. With dtype
    "float8_e4m3fn", on the CPU, rows of other types are divided by k_scale and v_scale and rounded: each a number or [batch, kv_heads].
    n_pages, page_window, page_sinks: pages of 64 positions on this rank, and most keys that step() sees; others are given back.
    values_in_keys: values are the first value_dim components of the keys (multi-head latent attention), and stored once.
    most_queries: a step of up to so many queries takes no memory; 0: it is taken when a step needs it. n_queries: its name in 0.2.
    capacity: positions of each sequence that memory is taken for at once, not with pages.
    range_ends: where the ranges of positions of the ranks end, None for no end; then outputs have the bits of attention(). By default leaves
    of 64 positions are dealt to the ranks in turn, and outputs have those of attention(order="dealt").
    shared_memory: False: ranks of a node send over comm or group too, not through memory that they share. There a wait does not return to Python:
    Ctrl-C, and a process of gloo that is lost, come at the deadline. All objects on one comm or group share its messages:
    one of them at a time has a step under way, one thread at a time uses them, and an error that ends one ends all.
    transport: "nccl": NCCL carries the messages of ranks between the GPUs that are current as they open, for backend="cuda".
    compares: False: a step does not compare the lengths of all ranks and what queries see, and an error of one rank is told to none.
    portable: True: backend "cuda" has the bits of the CPU for 16 and 8 bits too, and tensor cores do not multiply; float32 always has them.
    If one rank refuses its arguments of Attention(), step(), start(), combine(), reshard() or, in pages, append(), all ranks raise ValueError with its line.
    """

    def __init__(self, comm=None, *, group=None, heads, head_dim, kv_heads=None, value_dim=None, batch=1, most_queries=0, dtype="float32", scale=None,
                 k_scale=None, v_scale=None, algorithm=None, backend=None, threads=1, ranks_per_node=None, timeout=None, n_pages=None, page_window=None,
                 page_sinks=None, values_in_keys=False, capacity=None, range_ends=None, shared_memory=True, compares=True, portable=False, transport=None, n_queries=None):
        if n_queries is not None:
            if most_queries:
                raise ValueError("most_queries and n_queries, its name in 0.2, are both given")
            most_queries = n_queries
        self._handle, self._views, self._started, self._stream, self._process = ctypes.c_void_p(), [_View() for _ in range(3)], None, None, None
        self._rule = _Seen()
        self._of_rule = ctypes.byref(self._rule)
        self._comm = comm  # outlives the duplicate
        address, self._size, self._callbacks = None, 1, None
        if comm is not None:
            if group is not None:
                raise ValueError("comm and group are both given")
            from mpi4py import MPI
            if MPI.Get_library_version().split("\0")[0].encode() == _library.ta_mpi():
                address, self._size = MPI._addressof(comm), comm.Get_size()
        if group is not None or comm is not None and address is None:
            carrier = _comm.group_of(comm, group)
            if carrier.is_lost:
                raise TransportError("a message of this group was late or has failed, so it is not used again: make a new group")
            self._size, self._callbacks = carrier.size, _comm.callbacks_of(carrier)
        callbacks = self._callbacks and ctypes.addressof(self._callbacks.comm)
        self._process = None if self._size == 1 and backend in (None, "cpu") else os.getpid()
        try:
            kv_heads, value_dim = heads if kv_heads is None else kv_heads, head_dim if value_dim is None else value_dim
            shape = [_integer(*x) for x in (("batch", batch), ("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("value_dim", value_dim),
                                            ("most_queries", most_queries))]
            # 0 is what C takes for the default of these.
            threads, ranks_per_node, n_pages, page_window, page_sinks, capacity = (
                0 if x is None else _integer(name, x, least, most) for name, x, least, most in (
                    ("threads", threads, 1, 2 ** 31 - 1), ("ranks_per_node", ranks_per_node, 1, 2 ** 31 - 1), ("n_pages", n_pages, 1, 2 ** 63 - 1),
                    ("page_window", page_window, 1, 2 ** 63 - 1), ("page_sinks", page_sinks, 0, 2 ** 63 - 1), ("capacity", capacity, 0, 2 ** 63 - 1)))
            if timeout is not None and not timeout > 0:
                raise ValueError(f"timeout is {timeout}; more than 0 seconds are needed")
            data_type = _DataType(*_one_of(_TYPES, "dtype", dtype.__name__ if isinstance(dtype, type) else str(dtype).split(".")[-1]), 1)
            text = [x if x is None else x.encode() for x in (algorithm, backend, transport)]
            scales = [x if x is None else _dlpack(numpy.broadcast_to(_plain(x), (batch, kv_heads)).astype("float32")) for x in (k_scale, v_scale)]
            scale, has_scale = _scale(scale)
            ends = self._ends(range_ends, self._size)
            setup = _Setup(ctypes.sizeof(_Setup), *shape, data_type, data_type, scale, *text[:2], threads, ranks_per_node, address, timeout or 0,
                           *(capsule and _pointer(capsule, b"dltensor") for capsule in scales), n_pages, page_window, page_sinks,
                           bool(values_in_keys), has_scale, capacity, None, callbacks, ends and ctypes.addressof(ends), not shared_memory, not compares, text[2],
                           bool(portable))
            self._out_axes = (batch, heads), value_dim
            self._device = {"cuda": 2, "emulated": 12}.get(backend)
        except Exception as error:
            if self._size == 1:
                raise
            setup = _Setup(size=ctypes.sizeof(_Setup), comm=address, refusal=_line(error), callbacks=callbacks)  # the others wait to open
        _call("open", ctypes.byref(setup), ctypes.byref(self._handle), callbacks=self._callbacks)

    def _ends(self, range_ends, n):
        """Ends of n ranges as C takes them; None without them."""
        if range_ends is None:
            return None
        if len(range_ends) != n:
            raise ValueError(f"range_ends has {len(range_ends)} ends for {n} ranks")
        return (ctypes.c_int64 * n)(*[2 ** 63 - 1 if x is None else _integer("an end of range_ends", x, 0) for x in range_ends])

    def _use(self, stream):
        """Lets the calls to come read and write on the device in the order of a stream; None: after the default stream, and wait."""
        if stream is not None:
            stream = operator.index(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
        if stream != self._stream:
            _call("use_stream", self._open(), ctypes.c_void_p(stream), stream is None)
            self._stream = stream

    def append(self, k, v=None, entry=0, n=None, stream=None):
        """Appends positions to a sequence: k [n_kv, n, d_h] or [1, n_kv, n, d_h], v [n_kv, n, d_v] likewise, or None where values are in the keys.

        Both None: n positions that this rank does not hold. stream: as step().
        """
        if n is None and stream is self._stream is None and type(entry) is int and 0 <= entry < 2 ** 63 and _is_plain_torch(k) and (v is None or _is_plain_torch(v)) and k.dim() in (3, 4):
            of_k, of_v, _ = self._views
            if of_k.set(k) and (v is None or of_v.set(v)):
                status = _library.ta_append(self._open(), entry, k.shape[-2], of_k.address, None if v is None else of_v.address)
                if status != 0:
                    _fail(status, self._callbacks)
                return
        with self._told(_OF_APPEND):
            self._use(stream)
            if k is not None:
                positions = _shape(k, (3, 4), "k")[-2]
                if n is not None and n != positions:
                    raise ValueError(f"n is {n}, but k has {positions} positions")
                n = positions
            elif n is None:
                raise ValueError("n is needed where k is None")
            call = _prepared("append", self._handle, _integer("entry", entry, error=IndexError), _integer("n", n), k, v, device=self._device,
                             callbacks=self._callbacks)
        call()

    def step(self, q, causal=False, window=None, sinks=None, mask=None, softcap=None, out=None, by_heads=False, stream=None):
        """Attention of q [b, n_h, l, d_h] over what was appended, any l in every step; all but out and by_heads as attention().

        Learned sinks lie on the host. out: arrays (out, lse) that are written; of them lse may be None. by_heads: for layers that are
        sharded by heads; of p ranks, rank r passes the r-th of p parts of the heads, on the host, and gets their output. stream: of PyTorch or CuPy, or the number
        of a cudaStream_t, for arrays on the GPU: they are read and written in its order, and the call does not wait for the GPU, but over NCCL
        for its messages. It cannot be captured. @returns out in the type of q, lse in float32
        """
        if stream is self._stream is None and sinks is None and mask is None and softcap is None and not by_heads and _is_plain_torch(q) and q.dim() == 4 and (window is None or type(window) is int and 0 < window < 2 ** 63):
            views, rule = self._views, self._rule
            try:
                z, lse = self._outputs(q, q.shape[2]) if out is None else out
                rule.causal, rule.window = bool(causal), window or 0
                is_ready = views[0].set(q) and _is_plain_torch(z) and views[1].set(z) and (lse is None or _is_plain_torch(lse) and views[2].set(lse))
            except Exception:
                is_ready = False  # raised again below, where the other ranks are told
            if is_ready:
                status = _library.ta_step(self._open(), views[0].address, self._of_rule, views[1].address, None if lse is None else views[2].address)
                if status != 0:
                    _fail(status, self._callbacks)
                return z, lse
        with self._told():
            self._use(stream)
            seen, _capsule = _seen(causal, window, sinks, mask, softcap)
            l = _shape(q, 4, "q")[2]
            z, lse = self._outputs(q, l, by_heads) if out is None else map(_written, out)
            call = _prepared("step_by_heads" if by_heads else "step", self._handle, q, seen, z, lse, device=self._device, callbacks=self._callbacks)
        call()
        return _back(q, z, lse) if out is None else (z, lse)

    def _outputs(self, q, l, by_heads=False):
        """Arrays for out and lse of l queries."""
        (b, n_h), d_v = self._out_axes
        if by_heads:
            n_h //= self._size
        if _is_plain_torch(q):
            torch = sys.modules["torch"]
            return torch.empty((b, n_h, l, d_v), dtype=q.dtype, device="cpu"), torch.empty((b, n_h, l), dtype=torch.float32, device="cpu")
        return _empty(q, (b, n_h, l, d_v)), _empty(q, (b, n_h, l), "float32")

    def start(self, q, causal=False, window=None, sinks=None, mask=None, softcap=None, stream=None):
        """Begins a step: computes the states of this rank and posts the first messages. It waits for other ranks only to compare the step, unless
        compares is False. q is read before it returns. stream: as step(), also of finish()."""
        with self._told():
            self._use(stream)
            seen, _capsule = _seen(causal, window, sinks, mask, softcap)
            l = _shape(q, 4, "q")[2]
            call = _prepared("start", self._handle, q, seen, device=self._device, callbacks=self._callbacks)
        call()
        self._started = q, l

    def progress(self):
        """Moves a step that was begun, without waiting; between nodes of a group only finish() does. @returns whether nothing is left to wait for"""
        done = ctypes.c_int()
        _call("progress", self._open(), ctypes.byref(done), callbacks=self._callbacks)
        return bool(done.value)

    def finish(self):
        """Ends a step that was begun. @returns as step()"""
        self._open()
        if self._started is None:
            raise ValueError("no step was begun: call start()")
        like, l = self._started
        z, lse = self._outputs(like, l)
        _call("finish", self._handle, z, lse, device=self._device, callbacks=self._callbacks)
        self._started = None
        return _back(like, z, lse)

    def share(self, source, to, n):
        """Lets sequence `to`, without keys, begin with the first n positions of another one, in the same pages."""
        _call("share", self._open(), *(_integer(*x, error=IndexError) for x in (("source", source), ("to", to), ("n", n))))

    def reshard(self, range_ends=None, ranks=None):
        """Moves keys and values, so that other ranks hold them; the order of leaves and all bits stay. Collective. Not in pages.

        range_ends: of an Attention that was opened with some; for fewer than all ranks, those left over hold nothing. ranks: to how many of the
        ranks dealt leaves are dealt; by default to all.
        """
        self._open()
        with self._told(_OF_RESHARD):
            if range_ends is not None and ranks is not None:
                raise ValueError("range_ends and ranks are both given")
            n = len(range_ends) if range_ends is not None else self._size if ranks is None else _integer("ranks", ranks, 1, self._size)
            ends = self._ends(range_ends, n)
        _call("reshard", self._handle, n, ends and ctypes.c_void_p(ctypes.addressof(ends)), callbacks=self._callbacks)

    def combine(self, o, lse, by_heads=False, form="natural", stream=None):
        """Merges (o, lse) that the ranks' own kernels have computed; by_heads: rank r of p gets the r-th of p parts of the heads. stream: as step()."""
        with self._told():
            self._use(stream)
            b, n_h, l, d = _shape(o, 4, "o")
            shape = (b, n_h // self._size if by_heads else n_h, l, d)
            out, of_all = _empty(o, shape), _empty(o, shape[:3], "float32")
            call = _prepared("combine", self._handle, o, lse, _one_of(_FORMS, "form", form), bool(by_heads), out, of_all, device=self._device,
                             callbacks=self._callbacks)
        call()
        return _back(o, out, of_all)

    def truncate(self, n, entry=0):
        """Removes all positions of a sequence but the first n."""
        _call("truncate", self._open(), _integer("entry", entry, error=IndexError), _integer("n", n, error=IndexError))

    def release(self, entry=0):
        """Ends a sequence; the next append() begins another in its place."""
        self.truncate(0, entry)

    def length(self, entry=0):
        """Positions of a sequence, over all ranks."""
        length = ctypes.c_int64()
        _call("length", self._open(), _integer("entry", entry, error=IndexError), ctypes.byref(length))
        return length.value

    def holds(self, position):
        """Whether this rank holds a position."""
        holds = ctypes.c_int()
        _call("holds", self._open(), _integer("position", position, error=IndexError), ctypes.byref(holds))
        return bool(holds.value)

    def close(self):
        """Closes it, on every rank; before MPI ends."""
        if self._handle and self._is_here():
            _library.ta_close(self._handle)
        self._handle = ctypes.c_void_p()

    def abandon(self):
        """Gives up the exchange of this rank, without waiting for the others; then close() waits for none either."""
        _call("abandon", self._open())
        if self._callbacks is not None and self._size > 1:
            self._callbacks.group.is_lost = True  # the others may wait there for this rank

    @contextlib.contextmanager
    def _told(self, call=0):
        """Tells the other ranks of an error in the arguments of a call that they make too, so that they do not wait for this one."""
        self._open()
        try:
            yield
        except Exception as error:
            line = _line(error)
            if self._size > 1:
                try:
                    _call("refuse", self._handle, line, call, callbacks=self._callbacks)
                except ValueError as of_all:
                    if str(of_all).encode() != line:
                        raise of_all from error
            raise  # of this rank alone

    def _open(self):
        if not self._handle:
            raise ValueError("the Attention is closed")
        if not self._is_here():
            raise ValueError("the Attention is that of another process, from which this one was forked: open one here")
        return self._handle

    def _is_here(self):
        """Whether this process has its messages and its device; memory of the host is in a forked process too."""
        return self._process is None or self._process == os.getpid()

    def __reduce__(self):
        raise TypeError("an Attention has memory and messages of its own, which are not copied: open another one")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None and self._handle and self._size > 1 and self._is_here():
            self.abandon()  # the other ranks may not come to close()
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and self._comm is None:
            self.close()


def __getattr__(name):
    """The module diagnose, which can be called, when it is first asked for."""
    if name == "diagnose":
        import importlib
        return importlib.import_module("tree_attn.diagnose")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
