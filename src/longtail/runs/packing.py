"""Finished runs into one archive, small enough to send, and out again.

Only whole, finished, unedited runs go in; the same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import InputError
from longtail.runs import files
from longtail.runs.folder import LOG, MODEL, RECORD, Run, RunError, logits_file, seal

Progress = Callable[[int, int, str], None]
# The smallest step of float16 below zero: what keeps a runner-up from drawing level.
_LEAST = np.float16(-(2.0**-24))


def half_logits(logits: NDArray[Any]) -> tuple[NDArray[np.float16], NDArray[Any], float]:
    """Return logits' float16 distances from each row's maximum, the maxima, and the largest change.

    A distance is off by at most 2⁻¹¹ of itself (3·10⁻⁸ near zero), so the error is smallest
    where a decision is closest. The maximum, its ties and the argmax stay exactly as they were:
    a distance too small for float16 becomes the smallest one there is, not zero. Maxima have the
    logits' own type, float32 at least.

    Examples:
        >>> half, peak, change = half_logits(np.array([[3.0, 3.0 - 1e-9, -1.0]]))
        >>> (peak[:, None] + half).argmax(), change < 1e-7
        (np.int64(0), True)
    """
    half = np.empty(logits.shape, np.float16)
    peaks = np.empty(len(logits), np.promote_types(logits.dtype, np.float32))
    change = 0.0
    rows = max(1, (1 << 22) // logits.shape[1])
    for start in range(0, len(logits), rows):
        block = logits[start : start + rows].astype(np.float64)
        peak = block.max(axis=1)
        distance = block - peak[:, None]
        if distance.min() < np.finfo(np.float16).min:
            raise InputError(
                f"logits in one row lie {-distance.min():g} apart, more than half precision "
                f"holds (65504); pack with `half=False`."
            )
        rounded = distance.astype(np.float16)
        rounded[(rounded == 0) & (distance < 0)] = _LEAST
        half[start : start + rows] = rounded
        peaks[start : start + rows] = peak
        change = max(change, float(np.abs(rounded.astype(np.float64) - distance).max()))
    return half, peaks, change


def pack(
    runs: Iterable[Run | Path | str],
    archive: Path | str,
    *,
    weights: bool = False,
    logits: bool = True,
    half: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Put finished runs into one archive.

    Args:
        runs: opened runs or their folders; each is verified, and an unfinished one refused.
        archive: ends in ``.tar.gz`` or ``.tgz``.
        weights: also the weights of the models.
        logits: without them a run can still teach, be evaluated again and be baked.
        half: store logits in half precision, see `half_logits`; each run's record then says
            by how much a logit changed at most.
        force: replace an archive that exists.
        progress: called with (done, total, text).

    Returns:
        The archive's path.
    """
    archive = Path(archive)
    if not weights and not logits:
        raise InputError("without logits nothing would be left; take the weights along.")
    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise InputError(f"`archive` must end in .tar.gz or .tgz; got {archive.name!r}.")
    if archive.exists() and not force:
        raise InputError(f"{archive} exists; pass `force=True` to replace it.")
    folders = [run.folder if isinstance(run, Run) else run for run in runs]
    opened = sorted(map(Run.open, folders), key=lambda run: run.name)
    if not opened:
        raise InputError("`runs` is empty; at least one finished run is needed.")
    for one, two in pairwise(opened):
        if one.name == two.name:
            raise InputError(f"{one.folder} and {two.folder} are the same run; name one of them.")
    # No owner, no mode and no time in the headers: the same runs give the same bytes.
    with (
        files.atomic_path(archive) as temporary,
        open(temporary, "wb") as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for done, run in enumerate(opened):
            if progress is not None:
                progress(done, len(opened), run.name)
            for name, content in _packed_files(run, weights, logits, half).items():
                entry = tarfile.TarInfo(f"{run.name}/{name}")
                with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as f:
                    entry.size = f.seek(0, io.SEEK_END)
                    f.seek(0)
                    tar.addfile(entry, f)
    if progress is not None:
        progress(len(opened), len(opened), archive.name)
    return archive


def _packed_files(run: Run, weights: bool, logits: bool, half: bool) -> dict[str, bytes | Path]:
    """Return the files that an archive holds of a run; its record is made to match."""
    entries = dict(run.record["splits"]) if logits else {}
    kept = [LOG, *([MODEL] if weights else []), *map(logits_file, entries)]
    content: dict[str, bytes | Path] = {
        name: run.folder / name for name in kept if name in run.record["files"]
    }
    for split in entries if half else ():
        tensors = files.read_tensors(run.folder / logits_file(split))
        if "row_max" not in tensors and tensors["logits"].dtype != np.float16:
            tensors["logits"], tensors["row_max"], change = half_logits(tensors["logits"])
            save = _checks.require("safetensors.numpy", extra="train").save
            content[logits_file(split)] = save(dict(sorted(tensors.items())))
            entries[split] = {**entries[split], "dtype": "float16", "largest_change": change}
    listed = {name: files.sha256(data) for name, data in sorted(content.items())}
    # What the run was before it was packed, so that copies can be traced to each other.
    originals = {
        name: digest for name, digest in run.record["files"].items() if listed.get(name) != digest
    } | run.record.get("packed", {}).get("originals", {})
    record = {**run.record, "splits": entries, "files": listed, "packed": {"originals": originals}}
    text = f"{files.readable_json(seal(record))}\n"
    return {RECORD: text.encode(), **dict(sorted(content.items()))}


def unpack(
    archive: Path | str,
    root: Path | str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Run]:
    """Take the runs out of an archive that `pack` made.

    All of them are unpacked and verified before the first is put in its place. A run that is
    replaced is renamed, the new one put in, and then the old one removed; what a kill between
    these steps leaves under another name, the next call puts back.

    Args:
        archive: the file.
        root: the folder of runs to put them in.
        force: replace runs that exist there.
        progress: called with (done, total, text).

    Returns:
        The runs, opened.
    """
    archive, root = Path(archive), Path(root)
    if not archive.is_file():
        raise InputError(f"there is no archive {archive}.")
    root.mkdir(parents=True, exist_ok=True)
    staging = root / ".unpack.tmp"
    with files.exclusive(root / ".unpack"):
        shutil.rmtree(staging, ignore_errors=True)  # of a call that was killed
        for aside in filter(files.is_temporary, root.glob("*/*")):  # likewise
            place = aside.with_name(aside.name.rsplit(".", 2)[0])
            if aside.is_dir():
                shutil.rmtree(aside) if place.exists() else aside.rename(place)
        try:
            _extract(archive, staging)
            staged = [Run.open(path.parent) for path in sorted(staging.glob(f"*/*/{RECORD}"))]
            names = [run.name for run in staged]
            if not staged or len(set(names)) < len(names):
                raise InputError(f"{archive} holds {'one run twice' if staged else 'no runs'}.")
            taken = [name for name in names if (root / name).exists()]
            if taken and not force:
                raise InputError(
                    f"{root} has {_checks.listing(taken, most=3)} already; pass "
                    f"`force=True` to replace."
                )
            for done, run in enumerate(staged):
                if progress is not None:
                    progress(done, len(staged), run.name)
                place = root / run.name
                place.parent.mkdir(parents=True, exist_ok=True)
                with files.exclusive(place):
                    aside = files.temporary_name(place)
                    if place.exists():
                        place.rename(aside)
                    run.folder.rename(place)
                    shutil.rmtree(aside, ignore_errors=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return [Run.open(root / name, verify=False) for name in names]


def _extract(archive: Path, folder: Path) -> None:
    try:
        with gzip.open(archive) as zipped, tarfile.open(fileobj=zipped, mode="r:") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                safe = len(parts) == 3 and all(not part.startswith((".", "/")) for part in parts)
                source = tar.extractfile(member) if member.isreg() and safe else None
                path = folder.joinpath(*parts)
                if source is None or path.exists():
                    raise RunError(
                        f"{archive} holds {member.name!r}, which is not a file of a run or occurs "
                        f"twice; nothing was unpacked."
                    )
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    shutil.copyfileobj(source, file)
            # gzip's checksum stands behind tarfile's end mark, after at most a block of zeros.
            if len(zipped.read(1 << 20)) == 1 << 20:
                raise RunError(f"{archive} goes on behind its last run; nothing was unpacked.")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{archive} is truncated or not an archive of runs: {error}.") from error
