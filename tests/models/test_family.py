"""The page that compares Transformer, GPT and BERT says what the models are."""

import runpy
from pathlib import Path

FAMILY = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "family.py"))


def test_the_page_is_what_the_script_makes_of_the_real_models():
    text = FAMILY["PAGE"].read_text(encoding="utf-8")
    assert FAMILY["page"](text) == text, "run python benchmarks/family.py"
    assert "| 124,439,808 |" in text


def test_what_is_seen_is_measured_and_not_assumed():
    seen = FAMILY["measured"](lambda tokens: tokens.flip(1)[..., None].float())
    assert seen == [[i + j == 4 for j in range(5)] for i in range(5)]


def test_every_column_is_that_of_the_model_it_names():
    everything, causal = [[True] * 5] * 5, [[i <= j for i in range(5)] for j in range(5)]
    tiny, pre = FAMILY["facts"]("vit_ti16_384", everything), FAMILY["facts"]("transformer_small_pre", causal)
    assert (tiny["width, heads, hidden"], tiny["longest text"]) == ("192, 3, 768", "576 patches")
    assert (tiny["norms"], tiny["bend"], tiny["stacks"]) == ("pre", "GELU", "encoder")
    assert (pre["norms"], pre["bend"], pre["blocks"]) == ("pre", "ReLU", "3 encoder + 3 decoder")
    assert FAMILY["facts"]("gpt_mini_128", causal)["stacks"] == "decoder, without a source"
    seen = [matrix for whose, _, matrix in FAMILY["sights"]() if whose == "ViT"]
    assert seen == [everything]
