"""The example and the notebook, with the default model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from llama_index.core import VectorStoreIndex

from kvpacket_rag.bench.measures import f1
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from llama_index_kvpacket import KVPacketEmbedding
from tests.support.notebooks import run_notebook
from tests.support.watching import EXAMPLES, example


def test_an_engine_with_three_changed_lines_answers_the_same_from_packets(tmp_path: Path):
    engines = example("llama_index/engine.py")
    model = PacketModel.from_pretrained("smollm2-135m-instruct")
    index = VectorStoreIndex(engines.nodes(EXAMPLES / "corpus"), embed_model=KVPacketEmbedding())
    theirs = engines.before(index, model).query(engines.QUESTION)
    engine = engines.after(index, model, tmp_path / "kb")
    ours = engine.query(engines.QUESTION)
    sources = [found.node.node_id for found in theirs.source_nodes]
    assert [found.node.node_id for found in ours.source_nodes] == sources
    assert "94 days" in theirs.response
    assert "94 days" in ours.response
    assert f1(ours.response, [theirs.response]) > 0.5
    told = ours.metadata["kvpacket"]
    context = sum(len(model.text.plain(found.node.get_content("llm"))) for found in ours.source_nodes)
    assert told["packet_tokens"] >= 0.9 * context
    assert engine.query(engines.QUESTION).metadata["kvpacket"]["packets_built"] == 0


def test_the_notebook_runs_and_needs_three_changed_lines(tmp_path: Path):
    shutil.copytree(EXAMPLES / "corpus", tmp_path / "corpus")
    code, printed = run_notebook(EXAMPLES / "llama_index.ipynb", tmp_path)
    assert printed.count("94 days") == 2  # before and after
    assert re.search(r"before \d+ ms, after \d+ ms: \d+\.\d times as fast", printed)
    assert re.findall(r"# (\d)$", code, re.MULTILINE) == ["1", "2", "3"]
