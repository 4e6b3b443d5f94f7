"""Baked ONNX models, exported by both exporters of torch and by skl2onnx, run by onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from longtail import (
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    unbake,
)
random_inputs = None

COUNTS = np.array([900, 90, 10])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(10_000, 8)).astype(np.float32)


def run(model, **inputs):
    source = str(model) if not isinstance(model, onnx.ModelProto) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def log_softmax(logits):
    return np.log(softmax(logits))


class Net(nn.Module):
    def __init__(self, *, bias=True, head=None, three=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.fc = nn.Linear(16, 3, bias=bias)
        self.head, self.three = head, three

    def forward(self, x):
        x = self.body(x)
        if self.three:  # a sequence of one: MatMul and Add in place of Gemm
            x = x[:, None]
        logits = self.fc(x)
        logits = logits[:, 0] if self.three else logits
        return logits if self.head is None else self.head(logits)


HEADS = {
    "logits": (None, lambda f: f),
    "softmax": (nn.Softmax(dim=1), softmax),
    "log-softmax": (nn.LogSoftmax(dim=-1), log_softmax),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Files by (exporter, head, bias, three), each made once."""
    folder, made = tmp_path_factory.mktemp("exported"), {}

    def make(dynamo, head, bias, three=False):
        key = (dynamo, head, bias, three)
        if key not in made:
            torch.manual_seed(0)
            model = Net(bias=bias, head=HEADS[head][0], three=three).eval()
            path = folder / f"{len(made)}.onnx"
            batch = (
                {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
                if dynamo
                else {"dynamic_axes": {"x": {0: "batch"}}}
            )
            names = {"input_names": ["x"], "output_names": ["y"]}
            torch.onnx.export(model, (torch.randn(2, 8),), path, dynamo=dynamo, **names, **batch)
            logits = Net.forward(model.eval(), torch.as_tensor(ROWS)) if head == "logits" else None
            if logits is None:
                plain = Net(bias=bias, three=three)
                plain.load_state_dict(model.state_dict())
                logits = plain(torch.as_tensor(ROWS))
            made[key] = path, logits.detach().double().numpy()
        return made[key]

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_torch_exports(exported, tmp_path, dynamo, head, bias):
    path, logits = exported(dynamo, head, bias)
    out = bake_logit_adjustment(path, PRIOR, tau=1.1, out=tmp_path / "baked.onnx")
    (got,) = run(out, x=ROWS)
    wanted = HEADS[head][1](logits - 1.1 * LOG_PI)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_array_equal(got.argmax(1), wanted.argmax(1))
    assert np.mean(got.argmax(1) != logits.argmax(1)) > 0.1
    back = unbake(out, out=tmp_path / "back.onnx")
    assert back.read_bytes() == path.read_bytes()
    # Where there is a bias, or a Gemm that may have one, the graph is as long as before.
    added = len(onnx.load(out).graph.node) - len(onnx.load(path).graph.node)
    assert added == (0 if bias else 1 if dynamo else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_matmul_and_add(exported, tmp_path, dynamo):
    path, logits = exported(dynamo, "softmax", True, three=True)
    out = bake_logit_adjustment(path, PRIOR, out=tmp_path / "baked.onnx")
    (got,) = run(out, x=ROWS)
    wanted = softmax(logits - LOG_PI)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_array_equal(got.argmax(1), wanted.argmax(1))
    assert unbake(out, out=tmp_path / "back.onnx").read_bytes() == path.read_bytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
def test_weight_normalization(exported, tmp_path, dynamo, bias_mode):
    path, f = exported(dynamo, "softmax", True)
    model = onnx.load(path)
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    b = tensors["fc.bias"].astype(np.float64)
    nu = np.linalg.norm(tensors["fc.weight"].astype(np.float64), axis=1) ** 0.8
    out = bake_weight_normalization(path, tau=0.8, bias_mode=bias_mode, out=tmp_path / "baked.onnx")
    wanted = {"scale": f / nu, "keep": (f - b) / nu + b, "drop": (f - b) / nu}[bias_mode]
    np.testing.assert_allclose(run(out, x=ROWS)[0], softmax(wanted), atol=1e-5)
    assert unbake(out, out=tmp_path / "back.onnx").read_bytes() == path.read_bytes()


def test_weight_normalization_of_a_matmul(exported):
    path, f = exported(False, "logits", False)
    model = onnx.load(path)
    weight = next(
        onnx.numpy_helper.to_array(t) for t in model.graph.initializer if list(t.dims) == [16, 3]
    )
    baked = bake_weight_normalization(model)
    wanted = f / np.linalg.norm(weight.astype(np.float64), axis=0)
    np.testing.assert_allclose(run(baked, x=ROWS)[0], wanted, atol=1e-5)
    assert unbake(baked) == model


@pytest.mark.parametrize("nodes", ["y = Add(z, c)", "u = Add(z, c) y = Add(c, u)"])
def test_weight_normalization_of_several_biases(nodes):
    """All of them are the bias, as behind a layer that somebody has corrected."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"net (float[n, 8] x) => (float[n, 3] y) {{ z = Gemm(x, w, b) {nodes} }}"
    )
    w, b, c = (RANDOM.normal(size=s).astype(np.float32) for s in ((8, 3), 3, 3))
    for name, array in {"w": w, "b": b, "c": c}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    got = run(bake_weight_normalization(model, bias_mode="keep"), x=ROWS)[0]
    wanted = ROWS @ w / np.linalg.norm(w, axis=0) + b + (c if "u" not in nodes else 2 * c)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["Add", "Softmax"])
def test_functions_that_are_called_as_operators_are(name):
    """They may do anything; here they give logits."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>'
        f"net (float[n, 8] x) => (float[n, 3] y) {{ z = MatMul(x, w) y = my.{name}(z, b) }}"
        f'<domain: "my", opset_import: ["" : 17]>'
        f"{name} (z, b) => (y) {{ t = Add(b, b) y = Add(z, t) }}"
    )
    w, b = (RANDOM.normal(size=s).astype(np.float32) for s in ((8, 3), 3))
    for tensor, array in {"w": w, "b": b}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor))
    baked = bake_logit_adjustment(model, PRIOR)
    np.testing.assert_allclose(run(baked, x=ROWS)[0], ROWS @ w + 2 * b - LOG_PI, atol=1e-5)
    assert unbake(baked) == model


def test_inputs_that_are_not_those_of_the_model():
    model = to_onnx(LogisticRegression().fit(ROWS[:9], [0, 1, 2] * 3), ROWS[:1])
    bake_logit_adjustment(model, PRIOR, inputs={"X": ROWS[:9]})
    with pytest.raises(InputError, match="takes float32 as 'X', but `inputs` has float64; convert"):
        bake_logit_adjustment(model, PRIOR, inputs={"X": ROWS[:9].astype(float)})
    with pytest.raises(InputError, match=r"`inputs` of an ONNX model .* dictionary, .*ndarr"):
        bake_logit_adjustment(model, PRIOR, inputs=ROWS[:9])


def test_the_record(exported, tmp_path):
    path, _ = exported(False, "softmax", True)
    model = onnx.load(path)
    baked = bake_logit_adjustment(model, PRIOR, tau=0.5)
    assert bake_record(model) is None
    record = bake_record(baked)
    assert (record.method, record.tau) == ("logit_adjustment", 0.5)
    assert record.how == "added to the bias of the Gemm /fc/Gemm"
    assert record.settings == {"prior": PRIOR.probs.tolist()}
    onnx.save(baked, tmp_path / "m.onnx")
    assert bake_record(tmp_path / "m.onnx") == record
    assert unbake(baked) == model


# ---- scikit-learn, converted by skl2onnx -----------------------------------------------------

CENTRES = RANDOM.normal(size=(3, 8))
Y = np.argmax(ROWS @ CENTRES.T + [2, 0, -1] + RANDOM.normal(size=(10_000, 3)), axis=1)
X = ROWS


def columns(outputs):
    """Label and probabilities of whatever form of outputs."""
    label, *rest = outputs
    if len(rest) > 1:
        return label, np.stack(rest, axis=1)
    if isinstance(rest[0], list):
        return label, np.array([[row[key] for key in sorted(row)] for row in rest[0]])
    return label, rest[0]


def adjusted_probs(probs, log_pi, tau):
    odds = probs.astype(np.float64) * np.exp(-tau * log_pi)
    return odds / odds.sum(axis=1, keepdims=True)


MODELS = {
    "logistic": LogisticRegression(),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "one-vs-rest": SGDClassifier(loss="log_loss", random_state=0),
    "forest": RandomForestClassifier(20, max_depth=5, random_state=0),
}


@pytest.mark.parametrize("zipmap", [False, True, "columns"])
@pytest.mark.parametrize("names", [None, np.array(["cat", "dog", "emu"])], ids=["int", "str"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_skl2onnx(tmp_path, kind, zipmap, names):
    labels = Y if names is None else names[Y]
    classifier = MODELS[kind].fit(X[:1000], labels[:1000])
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": zipmap}})
    onnx.save(model, tmp_path / "model.onnx")
    old_label, old = columns(run(model, X=X))
    output = "probabilities" if (kind, zipmap) == ("one-vs-rest", "columns") else None
    out = bake_logit_adjustment(
        tmp_path / "model.onnx", PRIOR, tau=0.7, output=output, out=tmp_path / "baked.onnx"
    )
    label, probs = columns(run(out, X=X))
    wanted = adjusted_probs(old, LOG_PI, 0.7)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    known = np.arange(3) if names is None else names
    top = np.sort(wanted, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-6  # forests tie
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(label[clear], known[wanted.argmax(axis=1)][clear])
    assert np.mean(np.asarray(label) != np.asarray(old_label)) > 0.05
    back = unbake(out, out=tmp_path / "back.onnx")
    assert back.read_bytes() == (tmp_path / "model.onnx").read_bytes()


# Models of which another classifier is only a part.
PARTS = [
    CalibratedClassifierCV(LogisticRegression(), ensemble=False, cv=2, method="isotonic"),
    VotingClassifier(
        [("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", flatten_transform=False
    ),
]


@pytest.mark.parametrize(
    "classifier",
    [
        GaussianNB(),
        QuadraticDiscriminantAnalysis(),
        KNeighborsClassifier(),
        OneVsRestClassifier(LogisticRegression()),
        MLPClassifier((8,), max_iter=20, random_state=0),
        SVC(probability=True, random_state=0),
        PARTS[0],
        PARTS[1],
    ],
    ids=lambda c: type(c).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_skl2onnx_labels_that_do_not_come_from_the_probabilities(classifier):
    classifier.fit(X[:300], Y[:300])
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": False}})
    _, old = run(model, X=X[:2000])
    baked = bake_logit_adjustment(model, PRIOR)
    label, probs = run(baked, X=X[:2000])
    wanted = adjusted_probs(old, LOG_PI, 1.0)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    top = np.sort(wanted, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-6
    np.testing.assert_array_equal(label.ravel()[clear], wanted.argmax(axis=1)[clear])
    assert np.mean(old.argmax(axis=1) != wanted.argmax(axis=1)) > 0.05
    assert unbake(baked) == model


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("classifier", PARTS, ids=lambda c: type(c).__name__)
def test_skl2onnx_a_classifier_that_is_only_a_part(classifier, label):
    classifier.fit(X[:1000], Y[:1000] > 0)
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": False}})
    if not label:
        del model.graph.output[0]
    prior = ClassPrior.from_counts([800, 200])
    *given, probs = run(bake_logit_adjustment(model, prior), X=X[:2000])
    wanted = adjusted_probs(run(model, X=X[:2000])[-1], prior.log_probs, 1.0)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    if label:
        np.testing.assert_array_equal(given[0].ravel(), probs.argmax(axis=1))


@pytest.mark.parametrize(
    "classifier",
    [
        KNeighborsClassifier(5),
        KNeighborsClassifier(5, weights="distance"),
        GaussianNB(),
        SGDClassifier(loss="log_loss", random_state=0),
    ],
    ids=lambda c: type(c).__name__,
)
def test_skl2onnx_data_that_made_up_inputs_are_far_from(classifier):
    """There all probabilities are 0 or 1, or those of huge log-likelihoods, off by rounding."""
    rows, labels = load_breast_cancer(return_X_y=True)
    rows, prior = rows.astype(np.float32), ClassPrior.from_labels(labels[::2])
    classifier.fit(rows[::2], labels[::2])
    model = to_onnx(classifier, rows[:1], options={id(classifier): {"zipmap": False}})
    label, probs = run(bake_logit_adjustment(model, prior), X=rows[1::2])
    before = run(model, X=rows[1::2])[1]
    np.testing.assert_allclose(probs, adjusted_probs(before, prior.log_probs, 1.0), atol=1e-3)
    np.testing.assert_array_equal(label.ravel(), probs.argmax(axis=1))


def test_skl2onnx_one_tree_of_pure_leaves_is_refused():
    model = to_onnx(DecisionTreeClassifier().fit(X[:1000], Y[:1000]), X[:1])
    with pytest.raises(InputError, match=r"nothing but 0 and 1, .* the pure leaves of one tree"):
        bake_logit_adjustment(model, ClassPrior.from_labels(Y[:1000]))


def test_nodes_that_are_not_in_order():
    """As tools leave them that convert to float16 and append the casts."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "net (float[n, 8] x) => (float[n, 3] y)"
        "{ h = Cast<to = 10>(x) z = Gemm(h, w) l = LogSoftmax(z) y = Cast<to = 1>(l) }"
    )
    weight = CENTRES.T.astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    first = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
    del model.graph.node[0]
    model.graph.node.append(first)
    got = run(bake_logit_adjustment(model, PRIOR), x=X[:100])[0]
    wanted = np.log(softmax(X[:100].astype(np.float64) @ weight - LOG_PI))
    np.testing.assert_allclose(got, wanted, atol=0.05)


@pytest.mark.parametrize("labels", [["emu", "cat", "dog"], [7, 3, 5]], ids=["str", "int"])
def test_a_dictionary_whose_keys_are_sorted(labels):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'
        "net (float[n, 8] X) => (float[n, 3] z) { z = MatMul(X, w) p = Softmax(z) }"
    )
    weights = CENTRES.T.astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    node = onnx.helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", **{kind: labels})
    model.graph.node.append(node)
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    logits, rows = run(bake_logit_adjustment(model, PRIOR), X=X)
    np.testing.assert_allclose(logits, X @ weights - LOG_PI, atol=1e-5)
    by_class = np.array([[row[label] for label in labels] for row in rows])
    np.testing.assert_allclose(by_class, softmax(X @ weights - LOG_PI), atol=1e-5)


@pytest.mark.parametrize("kind", ["logistic", "forest"])
def test_skl2onnx_two_classes(kind):
    counts = np.array([800, 200])
    classifier = MODELS[kind].fit(X[:1000], Y[:1000] > 0)
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": False}})
    _, old = run(model, X=X)
    baked = bake_logit_adjustment(model, ClassPrior.from_counts(counts))
    label, probs = run(baked, X=X)
    wanted = adjusted_probs(old, np.log(counts / counts.sum()), 1.0)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    clear = abs(wanted[:, 0] - 0.5) > 1e-6
    np.testing.assert_array_equal(label[clear], wanted.argmax(axis=1)[clear])
    assert unbake(baked) == model


@pytest.mark.parametrize("classifier", [LinearSVC(), RidgeClassifier()], ids=["svc", "ridge"])
def test_skl2onnx_scores(classifier):
    classifier.fit(X[:1000], Y[:1000])
    model = to_onnx(classifier, X[:1])
    _, old = run(model, X=X)
    label, scores = run(bake_logit_adjustment(model, PRIOR, tau=0.3), X=X)
    np.testing.assert_allclose(scores, old - 0.3 * LOG_PI, atol=1e-5)
    np.testing.assert_array_equal(label, (old - 0.3 * LOG_PI).argmax(axis=1))


def test_skl2onnx_one_margin():
    classifier = LinearSVC().fit(X[:1000], Y[:1000] > 0)
    model = to_onnx(classifier, X[:1])
    margin = classifier.decision_function(X)
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([9, 1]))
    assert bake_record(baked).how == "added to the intercepts of the LinearClassifier"
    label, scores = run(baked, X=X)
    np.testing.assert_allclose(scores.ravel(), margin + np.log(9), atol=1e-5)
    np.testing.assert_array_equal(label, (margin + np.log(9) > 0).astype(int))


def test_skl2onnx_one_margin_written_twice():
    classifier = SGDClassifier(random_state=0).fit(X[:1000], Y[:1000] > 0)
    model = to_onnx(classifier, X[:1])
    margin = classifier.decision_function(X)
    label, scores = columns(run(bake_logit_adjustment(model, ClassPrior.from_counts([9, 1])), X=X))
    np.testing.assert_allclose(scores[:, 1], margin + np.log(9), atol=1e-4)
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1], atol=1e-6)
    np.testing.assert_array_equal(label, margin + np.log(9) > 0)
    with pytest.raises(InputError, match="one weight vector for both classes"):
        bake_weight_normalization(model)


def test_skl2onnx_weight_normalization():
    classifier = LogisticRegression().fit(X[:1000], Y[:1000])
    model = to_onnx(classifier, X[:1], options={id(classifier): {"zipmap": False}})
    baked = bake_weight_normalization(model, tau=2.0, bias_mode="drop")
    nu = np.linalg.norm(classifier.coef_, axis=1) ** 2
    wanted = softmax((classifier.decision_function(X) - classifier.intercept_) / nu)
    label, probs = run(baked, X=X)
    np.testing.assert_allclose(probs, wanted, atol=1e-5)
    np.testing.assert_array_equal(label, wanted.argmax(axis=1))
    assert unbake(baked) == model


@pytest.mark.parametrize(
    ("x", "y", "classes", "rows"),
    [
        ("n, 8", "n, 3", 3, 256),
        ("n, 3, 224, 224", "n, 3", 3, 16),
        ("n, 8", "n, 200000", None, 20),  # the model says how many
        ("n, 8", "n, k", 200_000, 20),  # the prior does
        ("n, t", "n, t, 50000", 50_000, 8),  # for each of 32 words
        ("n, 8", "n, 3000000", 3_000_000, 8),
        ("64, 8", "64, 200000", 200_000, 64),  # the model takes no other
    ],
)
def test_the_made_up_batch_is_small_where_the_classes_are_many(x, y, classes, rows):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> '
        f"net (float[{x}] x) => (float[{y}] y) {{ y = Identity(x) }}"
    )
    assert len(random_inputs(model, open_size=32, num_classes=classes)["x"]) == rows
