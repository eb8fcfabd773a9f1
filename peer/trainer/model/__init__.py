"""The built-in model, its optimizers and its validation loss.

The files, each built on those above it:

    reproducible_random.py  numbers that are the same on every machine
    gpt.py                  the built-in GPT
    evaluation.py           validation loss of a whole model
    muon.py                 momentum with orthogonalised matrices
    inner_optimizer.py      the inner optimizer that the manifest selects

Sources: RMSNorm (arXiv 1910.07467), rotary positions (arXiv 2104.09864), SwiGLU (arXiv 2002.05202), tied embeddings
(arXiv 1608.05859). AdamW (arXiv 1711.05101), Muon (arXiv 2502.16982) and its use under DiLoCo (arXiv 2505.23725).
"""
