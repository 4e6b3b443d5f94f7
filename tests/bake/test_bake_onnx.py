"""Baked ONNX models: exports of torch, scikit-learn and tree libraries, run by onnxruntime."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, numpy_helper
from onnxruntime import quantization
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import nn

from longtail import (
    ClassPrior,
    InputError,
    LogitAdjustedClassifier,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)

COUNTS = np.array([900, 90, 10])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2000, 8)).astype(np.float32)
CENTRES = RANDOM.normal(size=(3, 8))
Y = np.argmax(X @ CENTRES.T + [2, 0, -1] + RANDOM.normal(size=(2000, 3)), axis=1)
NAMES = np.array(["cat", "dog", "emu"])
KEY = "longtail.baked"


def run(model, **inputs):
    source = str(model) if not isinstance(model, onnx.ModelProto) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def adjusted_probs(probs, log_pi, tau=1.0):
    return softmax(np.log(np.maximum(probs.astype(np.float64), 2.0**-126)) - tau * log_pi)


def columns(outputs):
    """Label and probabilities of whatever form of outputs."""
    label, *rest = outputs
    if len(rest) > 1:
        return label, np.stack([part.ravel() for part in rest], axis=1)
    if isinstance(rest[0], list):
        return label, np.array([[row[key] for key in sorted(row)] for row in rest[0]])
    return label, rest[0]


def there_and_back(model, prior, **settings):
    """A baked copy, after checking that it can be undone and is not baked twice."""
    baked = bake_logit_adjustment(model, prior, **settings)
    assert unbake(baked).SerializeToString() == model.SerializeToString()
    with pytest.raises(InputError, match="is baked already"):
        bake_logit_adjustment(baked, prior, **settings)
    return baked


# ---- networks ----------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, *, bias=True, head=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.fc = nn.Linear(16, 3, bias=bias)
        self.head = head

    def forward(self, x):
        logits = self.fc(self.body(x))
        return logits if self.head is None else self.head(logits)


HEADS = {
    "logits": (None, lambda f: f),
    "softmax": (nn.Softmax(dim=1), softmax),
    "log-softmax": (nn.LogSoftmax(dim=-1), lambda f: np.log(softmax(f))),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Files and their logits by (exporter, head, bias), each made once."""
    folder, made = tmp_path_factory.mktemp("exported"), {}

    def make(dynamo, head, bias):
        key = (dynamo, head, bias)
        if key not in made:
            torch.manual_seed(0)
            model, path = Net(bias=bias, head=HEADS[head][0]).eval(), folder / f"{len(made)}.onnx"
            batch = {"dynamic_axes": {"x": {0: "batch"}}}
            if dynamo:
                batch = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
            names = {"input_names": ["x"], "output_names": ["y"]}
            torch.onnx.export(model, (torch.randn(2, 8),), path, dynamo=dynamo, **names, **batch)
            model.head = None
            made[key] = path, model(torch.as_tensor(X)).detach().double().numpy()
        return made[key]

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_torch_exports(exported, tmp_path, dynamo, head, bias):
    path, logits = exported(dynamo, head, bias)
    out = bake_logit_adjustment(path, PRIOR, tau=1.1, out=tmp_path / "baked.onnx")
    (got,) = run(out, x=X)
    np.testing.assert_allclose(got, HEADS[head][1](logits - 1.1 * LOG_PI), atol=1e-5)
    back = unbake(out, out=tmp_path / "back.onnx")
    assert back.read_bytes() == path.read_bytes()
    # Where there is a bias, or a Gemm that may have one, the graph is as long as before.
    added = len(onnx.load(out).graph.node) - len(onnx.load(path).graph.node)
    assert added == (0 if bias else 1 if dynamo else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
def test_weight_normalization(exported, tmp_path, dynamo, bias_mode):
    path, f = exported(dynamo, "softmax", True)
    model = onnx.load(path)
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    b = tensors["fc.bias"].astype(np.float64)
    nu = np.linalg.norm(tensors["fc.weight"].astype(np.float64), axis=1) ** 0.8
    out = bake_weight_normalization(path, tau=0.8, bias_mode=bias_mode, out=tmp_path / "baked.onnx")
    wanted = {"scale": f / nu, "keep": (f - b) / nu + b, "drop": (f - b) / nu}[bias_mode]
    np.testing.assert_allclose(run(out, x=X)[0], softmax(wanted), atol=1e-5)
    assert unbake(out, out=tmp_path / "back.onnx").read_bytes() == path.read_bytes()


W = CENTRES.T.astype(np.float32)


def network(nodes, outputs="float[] y", *, weight=W, **constants):
    """A model of nodes in ONNX's own notation, with inputs x of eight numbers."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[n, 8] x) => ({outputs}) {{ {nodes} }}'
    )
    constants = {"w": weight, "b": np.ones(weight.shape[-1], np.float32)} | constants
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
        if name in used
    )
    return model


F = X.astype(np.float64) @ W


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("y = Gemm(x, w, b)", F + 1 - LOG_PI),
        ("y = MatMul(x, w)", F - LOG_PI),
        ("z = MatMul(x, w) y = Add(b, z)", F + 1 - LOG_PI),
        ("z = MatMul(x, w) t = Mul(z, b) y = Softmax(t)", softmax(F - LOG_PI)),
        ("z = MatMul(x, w) y = Softmax(z) unused = Add(z, b)", softmax(F - LOG_PI)),
    ],
)
def test_layers(nodes, wanted):
    baked = there_and_back(network(nodes), PRIOR)
    np.testing.assert_allclose(run(baked, x=X)[0], wanted, atol=1e-5)


def test_logits_probabilities_and_label_together():
    outputs = "float[] z, float[] p, int64[] i, float[] m, float[n, 8] x"
    nodes = "z = MatMul(x, w) p = Softmax(z) i = ArgMax<axis = 1, keepdims = 0>(z)"
    model = network(nodes + " m = ReduceMax<axes = [1]>(z)", outputs)
    baked = there_and_back(model, PRIOR)
    z, p, i, m, x = run(baked, x=X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose(z, F - LOG_PI, atol=1e-5)
    np.testing.assert_allclose(p, softmax(F - LOG_PI), atol=1e-5)
    np.testing.assert_array_equal(i, z.argmax(1))
    np.testing.assert_allclose(m.ravel(), z.max(1))


def test_two_classes_with_one_output():
    prior = ClassPrior.from_counts([900, 100])
    weight = W[:, :1]
    squeezed = "z = MatMul(x, w) a = Constant<value_ints = [1]>() y = Squeeze(z, a)"
    for nodes in ("y = MatMul(x, w)", squeezed):
        got = run(there_and_back(network(nodes, weight=weight), prior), x=X)[0]
        np.testing.assert_allclose(got.ravel(), F[:, 0] + np.log(9), atol=1e-5)
    got = run(there_and_back(network("z = MatMul(x, w) y = Sigmoid(z)", weight=weight), prior), x=X)
    odds = np.exp(F[:, 0]) * 9
    np.testing.assert_allclose(got[0].ravel(), odds / (1 + odds), atol=1e-5)


def test_several_heads():
    model = network("y = MatMul(x, w) z = MatMul(x, b)", "float[] y, float[] z", b=2 * W)
    with pytest.raises(InputError, match="more than one output is the softmax or the last"):
        bake_logit_adjustment(model, PRIOR)
    for names, shifts in ((["y", "z"], (LOG_PI, LOG_PI)), ("z", (0, LOG_PI))):
        y, z = run(there_and_back(model, PRIOR, output=names), x=X)
        np.testing.assert_allclose(y, F - shifts[0], atol=1e-5)
        np.testing.assert_allclose(z, 2 * F - shifts[1], atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "output", "wanted"),
    [
        ("z = MatMul(x, w) y = Div(z, b)", "y", F - LOG_PI),
        ("z = MatMul(x, w) q = Softmax(z) r = Sum(q, q) y = Div(r, two)", "y", softmax(F - LOG_PI)),
    ],
)
def test_what_the_graph_does_not_tell_is_named(nodes, output, wanted):
    model = network(nodes, two=np.float32(2))
    with pytest.raises(InputError, match="name it, or several, with `output=`"):
        bake_logit_adjustment(model, PRIOR)
    got = run(there_and_back(model, PRIOR, output=output), x=X)[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "settings", "message"),
    [
        ("y = MatMul(x, w)", {"output": "z"}, "there is no output 'z'; there is y"),
        ("y = MatMul(x, w)", {"prior": ClassPrior.from_counts([1, 2])}, "of 2 classes"),
        ("z = MatMul(x, w) y = Sigmoid(z)", {"output": "y"}, "holds neither logits nor plain"),
    ],
)
def test_bad_input(nodes, settings, message):
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(network(nodes), **{"prior": PRIOR, **settings})


def test_a_convolution_as_head():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[n, 8, 5, 6] x) => (float[] y) '
        "{ z = Conv(x, w, b) y = Softmax<axis = 1>(z) }"
    )
    kernel = CENTRES.astype(np.float32)[:, :, None, None]
    for name, value in {"w": kernel, "b": np.ones(3, np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    images = RANDOM.normal(size=(4, 8, 5, 6)).astype(np.float32)
    (old,), (got,) = run(model, x=images), run(there_and_back(model, PRIOR), x=images)
    np.testing.assert_allclose(got, adjusted_probs(old, LOG_PI[:, None, None]), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_int8(exported, tmp_path):
    path, _ = exported(False, "logits", True)
    quantized = tmp_path / "int8.onnx"
    quantization.quantize_dynamic(path, quantized)
    out = bake_logit_adjustment(quantized, PRIOR, out=tmp_path / "b.onnx")
    wanted = run(quantized, x=X)[0] - LOG_PI
    np.testing.assert_allclose(run(out, x=X)[0], wanted, atol=1e-5)
    assert unbake(out, out=tmp_path / "u.onnx").read_bytes() == quantized.read_bytes()


# ---- files -------------------------------------------------------------------------------------


def with_data(folder, location="m.data"):
    folder.mkdir(exist_ok=True)
    model = network("y = Gemm(x, w, b)")
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    data = weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx", data


def test_data_files_are_copied_beside(tmp_path):
    path, data = with_data(tmp_path / "model")
    (tmp_path / "model" / "m.data").write_bytes(data)
    (tmp_path / "new").mkdir()
    out = bake_logit_adjustment(path, PRIOR, out=tmp_path / "new" / "b.onnx")
    np.testing.assert_allclose(run(out, x=X)[0], F + 1 - LOG_PI, atol=1e-5)
    assert (tmp_path / "new" / "m.data").read_bytes() == data
    assert unbake(out, out=tmp_path / "new" / "c.onnx").read_bytes() == path.read_bytes()
    (tmp_path / "new" / "m.data").write_bytes(b"other")
    with pytest.raises(InputError, match=r"m\.data exists with other content"):
        bake_logit_adjustment(path, PRIOR, out=out, force=True)


def test_data_files_outside_the_folder_are_refused(tmp_path):
    secret = tmp_path / "secret"
    path, data = with_data(tmp_path / "model", "../secret")
    secret.write_bytes(data)
    with pytest.raises(InputError, match="lies outside its folder"):
        bake_logit_adjustment(path, PRIOR, out=tmp_path / "b.onnx")


def test_files_and_records(tmp_path):
    path, out = tmp_path / "m.onnx", tmp_path / "b.onnx"
    model = network("y = Gemm(x, w, b)")
    model.metadata_props.add(key="author", value="somebody")
    onnx.save(model, path)
    bake_logit_adjustment(path, PRIOR, tau=0.5, out=out)
    record = bake_record(out)
    assert (record.method, record.tau, record.where) == ("logit_adjustment", 0.5, "y")
    assert record.settings == {"prior": PRIOR.probs.tolist()}
    assert bake_record(path) is None
    texts = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert texts["author"] == "somebody"
    assert json.loads(texts[KEY])["tau"] == 0.5
    with pytest.raises(InputError, match=r"m\.onnx is not baked"):
        unbake(path, out=tmp_path / "c.onnx")
    changed = onnx.load(out)
    changed.graph.doc_string = "changed"
    with pytest.raises(InputError, match="was changed after it was baked"):
        unbake(changed)
    path.write_bytes(b"no model")
    with pytest.raises(InputError, match="is not an ONNX file"):
        bake_logit_adjustment(path, PRIOR, out=tmp_path / "c.onnx")


# ---- converted classifiers ---------------------------------------------------------------------

CLASSIFIERS = {
    "logistic": LogisticRegression(),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": RandomForestClassifier(20, max_depth=5, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=5),
    "naive Bayes": GaussianNB(),
    "k-NN": KNeighborsClassifier(),
}


def check_converted(model, prior, names=None, tau=1.0):
    feed = {model.graph.input[0].name: X}
    old_label, old = columns(run(model, **feed))
    baked = there_and_back(model, prior, tau=tau)
    label, probs = columns(run(baked, **feed))
    wanted = adjusted_probs(old, prior.log_probs, tau)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    known = np.arange(len(prior.probs)) if names is None else names
    top = np.sort(wanted, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-5  # forests tie
    np.testing.assert_array_equal(np.ravel(label)[clear], known[wanted.argmax(axis=1)][clear])
    assert np.mean(np.ravel(label) != np.ravel(old_label)) > 0.02


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zipmap", [False, True, "columns"])
@pytest.mark.parametrize("labels", ["three", "two", "names"])
@pytest.mark.parametrize("kind", list(CLASSIFIERS))
def test_skl2onnx(kind, labels, zipmap):
    y = {"three": Y, "two": (Y > 0).astype(int), "names": NAMES[Y]}[labels]
    classifier = CLASSIFIERS[kind].fit(X[:500], y[:500])
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": zipmap}})
    prior = ClassPrior.from_counts([800, 200]) if labels == "two" else PRIOR
    check_converted(model, prior, NAMES if labels == "names" else None, tau=0.7)


@pytest.mark.parametrize("classifier", [LinearSVC(), RidgeClassifier()], ids=["svc", "ridge"])
def test_skl2onnx_scores(classifier):
    model = to_onnx(classifier.fit(X[:500], Y[:500]), X[:1])
    _, old = run(model, X=X)
    label, scores = run(there_and_back(model, PRIOR, tau=0.3), X=X)
    np.testing.assert_allclose(scores, old - 0.3 * LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(label, (old - 0.3 * LOG_PI).argmax(axis=1))
    margin = classifier.fit(X[:500], Y[:500] > 0).decision_function(X)
    prior = ClassPrior.from_counts([9, 1])
    label, scores = run(there_and_back(to_onnx(classifier, X[:1]), prior), X=X)
    if scores.shape[1] == 1:
        np.testing.assert_allclose(scores.ravel(), margin + np.log(9), atol=1e-5)
    np.testing.assert_array_equal(label, (margin + np.log(9) > 0).astype(int))


@pytest.mark.parametrize("tau", [1.0, 12.0])
def test_zero_probabilities_are_those_of_the_adjusted_classifier(tau):
    y = np.where(Y[:600] == 2, 2, np.where(RANDOM.random(600) < 0.2, Y[:600], 0))
    python = LogitAdjustedClassifier(KNeighborsClassifier(5), tau=tau).fit(X[:600], y)
    prior, classifier = ClassPrior.from_labels(y), KNeighborsClassifier(5).fit(X[:600], y)
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": False}})
    _, old = run(model, X=X)
    assert np.mean(old == 0) > 0.1
    label, probs = run(bake_logit_adjustment(model, prior, tau=tau), X=X)
    np.testing.assert_allclose(probs, adjusted_probs(old, prior.log_probs, tau), atol=1e-5)
    assert np.mean(label == python.predict(X)) > 0.99


@pytest.mark.parametrize("two", [False, True], ids=["three", "two"])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
@pytest.mark.filterwarnings("ignore")
def test_libraries_of_trees(library, two, tmp_path):
    module = pytest.importorskip(library)
    labels, prior = (Y > 0, ClassPrior.from_counts([800, 200])) if two else (Y, PRIOR)
    labels = labels[:500].astype(int)
    if library == "catboost":
        settings = {"iterations": 10, "verbose": 0, "allow_writing_files": False}
        module.CatBoostClassifier(**settings).fit(X[:500], labels).save_model(
            str(tmp_path / "m.onnx"), format="onnx"
        )
        check_converted(onnx.load(tmp_path / "m.onnx"), prior)
        return
    tools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    settings = {"initial_types": [("X", FloatTensorType([None, 8]))], "target_opset": 15}
    if library == "lightgbm":
        trees = module.LGBMClassifier(n_estimators=10, verbose=-1).fit(X[:500], labels)
        for zipmap in (False, True):
            check_converted(tools.convert_lightgbm(trees, zipmap=zipmap, **settings), prior)
    else:
        trees = module.XGBClassifier(n_estimators=10).fit(X[:500], labels)
        check_converted(tools.convert_xgboost(trees, **settings), prior)


def test_a_bias_that_another_node_uses_gets_a_copy():
    model = network("h = Gemm(x, v, b) y = Gemm(h, u, b)", v=W, u=np.eye(3, dtype=np.float32))
    baked = there_and_back(model, PRIOR)
    np.testing.assert_allclose(run(baked, x=X)[0], F + 2 - LOG_PI, atol=1e-5)


def test_one_of_two_logits_is_no_margin():
    nodes = "z = MatMul(x, w) y = Gather<axis = 1>(z, one)"
    model = network(nodes, weight=W[:, :2], one=np.array(1))
    with pytest.raises(InputError, match="no output is the softmax or the last linear layer of 2"):
        bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))


def test_a_label_that_would_not_follow_is_refused():
    nodes = "z = MatMul(x, w) t = MatMul(x, v) y = Add(t, b) i = ArgMax<axis = 1, keepdims = 0>(z)"
    model = network(nodes, "float[] y, int64[] i", v=W)
    with pytest.raises(InputError, match="'i' would no longer be the class of the largest score"):
        bake_logit_adjustment(model, PRIOR)
