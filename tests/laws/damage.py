"""How tests change a saved model without breaking its digests: what is left to find is what the change means."""

import hashlib
import json

from safetensors.torch import load_file, save

from manygp.estimators import folders


def manifest_of(folder):
    return json.loads((folder / "manygp.json").read_text())


def tensors_of(folder):
    """The file of tensors."""
    (path,) = folder.glob("tensors-*.safetensors")
    return path


def sign(folder, manifest):
    """Write a manifest with the digest that belongs to it."""
    (folder / "manygp.json").write_text(json.dumps(manifest | {"sha256": folders._digest(manifest)}))


def edit(folder, **changes):
    """Change some fields of the manifest; None of `drop` stays."""
    sign(folder, manifest_of(folder) | changes)


def edit_tensors(folder, change):
    """Change the tensors by a function of all of them."""
    old = tensors_of(folder)
    tensors = load_file(old)
    change(tensors)
    content = save(tensors)
    digest = hashlib.sha256(content).hexdigest()
    old.unlink()
    name = f"tensors-{digest[:16]}.safetensors"
    (folder / name).write_bytes(content)
    edit(folder, tensors={"file": name, "bytes": len(content), "sha256": digest})
