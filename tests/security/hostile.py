"""Files that somebody made to do harm: each kind by name, as bytes. Nothing here is dangerous unless it is believed.

What would run if any of them were unpickled touches a file called `pwned`, or imports a module `bolide_canary`.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zipfile
from typing import Any

import torch

from bolide.checkpoint import digest
from bolide.checkpoint.archive import parse

TOUCH = "open('pwned', 'w').close()"


class Call:
    """Pickles as a call."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class Writer(pickle._Pickler):
    """A pickler that writes calls of functions by their names, without importing them."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Call):
            module, _, name = obj.name.rpartition(".")
            self.write(b"c" + f"{module}\n{name}\n".encode())
            super().save(obj.arguments)
            self.write(b"R")
            return
        super().save(obj, save_persistent_id)


def pickled(value: Any) -> bytes:
    out = io.BytesIO()
    Writer(out, 2).dump(value)
    return out.getvalue()


def archived(data: bytes, *more: tuple[str, bytes], sealed: bool = False) -> bytes:
    """A checkpoint file with this data.pkl; sealed: with a manifest whose digests are right."""
    entries = [("data.pkl", data), (".format_version", b"1"), ("byteorder", sys.byteorder.encode()), *more]
    entries.append(("version", b"3\n"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for name, content in entries:
            target.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    if not sealed:
        return out.getvalue()
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(out.getvalue())
        digest.seal(file, digest.About(step=1))
        file.seek(0)
        return file.read()


def tensor(shape: tuple[int, ...], stride: tuple[int, ...], stored: int, key: str = "0") -> bytes:
    """The opcodes of a tensor over a storage that says it has `stored` numbers."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + key.encode() + b"X\3\0\0\0cpu" + number(stored)
    size = b"(" + b"".join(number(n) for n in shape) + b"t" + b"(" + b"".join(number(n) for n in stride) + b"t"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQK\0" + size + b"\x89ccollections\nOrderedDict\n)RtR"


def number(value: int) -> bytes:
    data = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def as_value(opcodes: bytes) -> bytes:
    """A pickle of {"state_dict": the value that the opcodes make}."""
    return b"\x80\x02}X\x0a\0\0\0state_dict" + opcodes + b"s."


CALLS: dict[str, Any] = {
    "os.system": Call("os.system", "touch pwned"),
    "posix.system": Call("posix.system", "touch pwned"),
    "nt.system": Call("nt.system", "touch pwned"),
    "subprocess.Popen": Call("subprocess.Popen", ["touch", "pwned"]),
    "subprocess.check_output": Call("subprocess.check_output", ["touch", "pwned"]),
    "eval": Call("builtins.eval", f"__import__('builtins').{TOUCH}"),
    "exec": Call("builtins.exec", TOUCH),
    "the old eval": Call("__builtin__.eval", TOUCH),
    "open": Call("builtins.open", "pwned", "w"),
    "__import__": Call("builtins.__import__", "bolide_canary"),
    "getattr": Call("builtins.getattr", Call("builtins.__import__", "os"), "system"),
    "import_module": Call("importlib.import_module", "bolide_canary"),
    "a module of its own": Call("bolide_canary.boom"),
    "a part of a module of its own": Call("bolide_canary.sub.boom"),
    "runpy": Call("runpy.run_path", "bolide_canary.py"),
    "rmtree": Call("shutil.rmtree", "keep"),
    "os.remove": Call("os.remove", "keep"),
    "a socket": Call("socket.create_connection", ("127.0.0.1", 9)),
    "a download": Call("urllib.request.urlopen", "http://127.0.0.1:9/"),
    "webbrowser": Call("webbrowser.open", "http://127.0.0.1:9/"),
    "ctypes": Call("ctypes.CDLL", "libc.so.6"),
    "pickle.loads": Call("pickle.loads", pickled(Call("os.system", "touch pwned"))),
    "_pickle.loads": Call("_pickle.loads", pickled(Call("os.system", "touch pwned"))),
    "marshal": Call("marshal.loads", b"\0"),
    "code.interact": Call("code.InteractiveInterpreter.runcode", TOUCH),
    "timeit": Call("timeit.timeit", TOUCH),
    "pip": Call("pip.main", ["download", "x"]),
    "functools.partial": Call("functools.partial", Call("os.system", "touch pwned")),
    "operator.attrgetter": Call("operator.attrgetter", "system"),
    "torch.load": Call("torch.load", "other.ckpt"),
    "torch.serialization.load": Call("torch.serialization.load", "other.ckpt"),
    "torch.hub": Call("torch.hub.load", "a/b", "c"),
    "torch.compile": Call("torch._dynamo.optimize"),
    "torch.ops": Call("torch.ops.load_library", "evil.so"),
    "torch.utils.cpp_extension": Call("torch.utils.cpp_extension.load", "a", ["evil.cpp"]),
    "torch.jit": Call("torch.jit.load", "other.ckpt"),
    "numpy": Call("numpy.load", "other.npy", None, True),
    "lightning's instantiator": Call("lightning.pytorch.cli.instantiate_module", "bolide_canary.Boom", {}),
    "hydra": Call("hydra.utils.instantiate", {"_target_": "os.system"}),
    "logging.config": Call("logging.config.dictConfig", {"version": 1}),
    "threading": Call("threading.Thread", None, None),
    "multiprocessing": Call("multiprocessing.Process", None, None),
    "bolide's own reader": Call("bolide.checkpoint.file.read_checkpoint", "other.ckpt"),
    "bolide's conversion": Call("bolide.checkpoint.convert.main", ["a", "b", "os.system"]),
}

OPCODES: dict[str, bytes] = {
    "INST": b"\x80\x02(X\x0b\0\0\0touch pwnedios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nX\x0b\0\0\0touch pwnedo.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
    "NEWOBJ": b"\x80\x02cbolide_canary\nBoom\n)\x81.",
    "NEWOBJ_EX": b"\x80\x04cbolide_canary\nBoom\n)}\x92.",
    "BUILD": b"\x80\x02cbolide_canary\nBoom\n)\x81}X\x01\0\0\0xK\x01sb.",
    "BUILD on a dictionary": b"\x80\x02ccollections\nOrderedDict\n)R}X\x09\0\0\0__class__cos\nsystem\nsb.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT4": b"\x80\x02\x84\x01\0\0\0.",
    "a persistent id of text": b"\x80\x02Pbolide_canary\n.",
    "a persistent id of another kind": b"\x80\x02(X\x06\0\0\0modulecos\nsystem\ntQ.",
    "a storage of a class of its own": as_value(
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagecos\nsystem\nX\1\0\0\x000X\3\0\0\0cpuK\1tQK\0K\1\x85K\1\x85tR"
    ),
    "an endless text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "an endless number": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"\1.",
    "a negative length": b"\x80\x02\x8b" + struct.pack("<i", -5) + b"\1.",
    "a far memo": b"\x80\x02}r" + struct.pack("<I", (1 << 32) - 1) + b"j" + struct.pack("<I", 7) + b".",
    "an empty stack": b"\x80\x020000.",
    "a stop at once": b"\x80\x02.",
    "no stop": b"\x80\x02}",
    "a frame that never ends": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "random bytes": bytes((i * 7919 + 13) % 251 for i in range(4000)),
    "a list a hundred thousand deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "lists that share": as_value(b"]" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60))),
    "a list in itself": b"\x80\x02}X\x01\0\0\0x]q\0h\0as.",
    "a dictionary in itself": b"\x80\x02}q\0X\x01\0\0\0xh\0s.",
    "a bytearray of a terabyte": as_value(b"cbuiltins\nbytearray\n" + number(1 << 40) + b"\x85R"),
    "a set of a terabyte": as_value(b"cbuiltins\nset\n" + number(1 << 40) + b"\x85R"),
    "a view of a terabyte": as_value(tensor((1 << 38,), (0,), 4)),
    "a tensor beyond its storage": as_value(tensor((1 << 20,), (1,), 4)),
    "a storage larger than its entry": as_value(tensor((1 << 20,), (1,), 1 << 20)),
    "a storage that wraps around": as_value(tensor((4,), (1,), (1 << 62) + 4)),
    "a negative storage": as_value(tensor((4,), (1,), -4)),
    "a negative shape": as_value(tensor((-4,), (1,), 4)),
    "a storage that is not there": as_value(tensor((4,), (1,), 4, key="7")),
}


def archives() -> dict[str, bytes]:
    """Files whose zip, or whose manifest, is the trap."""
    evil, good = pickled({"x": Call("os.system", "touch pwned")}), pickled({"global_step": 1})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        target.writestr("archive/data.pkl", bytes(300 << 20))
        target.writestr("archive/version", b"3\n")
    bomb = out.getvalue()
    doubled = io.BytesIO()
    with zipfile.ZipFile(doubled, "w") as target:
        target.writestr("archive/data.pkl", good)
        target.writestr("archive/data.pkL", evil)
        target.writestr("archive/version", b"3\n")
    same = doubled.getvalue().replace(b"data.pkL", b"data.pkl")
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1 << 50, 1 << 50)
    plain = archived(good)
    huge = plain[:-22] + wide + struct.pack("<4sIQI", b"PK\x06\x07", 0, len(plain) - 22, 1) + end
    script = io.BytesIO()
    with zipfile.ZipFile(script, "w") as target:
        target.writestr("archive/constants.pkl", evil)
        target.writestr("archive/data.pkl", evil)
        target.writestr("archive/code/__torch__.py", TOUCH)
        target.writestr("archive/version", b"3\n")
    legacy = io.BytesIO()
    torch.save({"a": 1}, legacy, _use_new_zipfile_serialization=False)
    names = {"manifest": {"format": 1, "entries": dict.fromkeys(map(str, range(200_000)))}, "sha256": ""}
    return {
        "a bomb": bomb,
        "a doubled entry": same,
        "an entry in two cases": doubled.getvalue(),
        "two archives, one behind the other": archived(good) + archived(evil),
        "an archive within another's end": archived(good)[:-2] + b"\x40\0" + archived(evil)[:64],
        "an entry above its folder": archived(good, ("../../../tmp/pwned", b"x")),
        "an entry with an absolute path": archived(good, ("/tmp/pwned", b"x")),
        "a petabyte of index": huge,
        "TorchScript": script.getvalue(),
        "a manifest of many names": archived(good, (digest.MANIFEST, json.dumps(names).encode())),
        "a manifest a hundred thousand deep": archived(good, (digest.MANIFEST, b"[" * 100_000)),
        "a manifest with doubled names": archived(good, (digest.MANIFEST, b'{"manifest": {}, "manifest": {}}')),
        "a manifest with an endless number": archived(good, (digest.MANIFEST, b'{"a": ' + b"9" * 100_000 + b"}")),
        "a legacy file": evil,
        "a legacy file after a good start": legacy.getvalue()[: -len(pickle.dumps([], 2))] + evil,
        "a bare call": b"cos\nsystem\n(S'touch pwned'\ntR.",
        "an evil part with right digests": archived(evil, sealed=True),
    }  # fmt: skip


def hostile_files() -> dict[str, bytes]:
    """All of them."""
    storage = ("data/0", struct.pack("<4f", 1, 2, 3, 4))
    files = {f"call {name}": archived(pickled({"state_dict": {}, "x": call})) for name, call in CALLS.items()}
    files |= {f"opcodes {name}": archived(data, storage) for name, data in OPCODES.items()}
    files |= {f"archive {name}": data for name, data in archives().items()}
    for data in files.values():
        assert data
    assert parse(io.BytesIO(files["call os.system"])).folder == "archive"
    return files
