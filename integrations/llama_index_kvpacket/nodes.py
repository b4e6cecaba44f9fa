"""Convert chunks to LlamaIndex nodes, and nodes to documents of a store."""

from __future__ import annotations

from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

import kvpacket_rag
from kvpacket_rag import Hit

__all__ = ["NODES", "content", "to_document", "to_node", "with_score"]

NODES = "llama_index_kvpacket"
"""Source of documents that were added through LlamaIndex. Each is one node and one chunk."""


def content(node: BaseNode) -> str:
    """Return what the model sees of a node. It is stripped, as LlamaIndex's own synthesizers and chat engines do."""
    return node.get_content(metadata_mode=MetadataMode.LLM).strip()


def to_document(node: BaseNode) -> kvpacket_rag.Document:
    """Return a node as a document of one chunk. Search uses the node's own embedding if it has one."""
    vector = None if node.embedding is None else tuple(float(number) for number in node.embedding)
    return kvpacket_rag.Document(
        content(node), id=node.node_id, source=NODES, metadata=node_to_metadata_dict(node), whole=True, vector=vector
    )


def to_node(hit: Hit) -> BaseNode:
    """Return a chunk as a node: the node from which it was made, or a new one whose metadata the model does not see."""
    if hit.source == NODES:
        return metadata_dict_to_node(dict(hit.metadata))
    named = {name: value for name, value in (("title", hit.title), ("source", hit.source)) if value}
    metadata: dict[str, Any] = {**named, **hit.metadata, "kvpacket": hit.chunk.reference}
    return TextNode(
        id_=hit.chunk.id,
        text=hit.chunk.text,
        metadata=metadata,
        excluded_llm_metadata_keys=list(metadata),
        excluded_embed_metadata_keys=list(metadata),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=hit.chunk.document)},
    )


def with_score(hit: Hit) -> NodeWithScore:
    """Return the node with the cosine of question and chunk; higher is nearer."""
    return NodeWithScore(node=to_node(hit), score=hit.score)
