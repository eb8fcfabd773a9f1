"""The manifest, on which all peers of a run agree, and PeerConfig, the choices of one volunteer. No torch.

The files, each built on those above it:

    retired_fields.py          removed fields of a run file, and their replacements
    validation_sentences.py    sentences that explain the mistakes in a file or a flag
    section.py                 the base class of all sections of a manifest
    learning_rate_schedule.py  the manifest's schedule of the inner learning rate, and the factor that results
    access_sections.py         the manifest's sections on access and on changes in a live run
    allowed_files.py           the manifest's list of files, which members serve
    hf_config.py               the text that describes a model of the Hugging Face library, and its forbidden fields
    model_section.py           the manifest's section on the model
    training_section.py        the manifest's section on the inner loop
    data_source.py             the manifest's section on data, and the volunteer's choice of other data
    manifest.py                RunManifest
    peer_config.py             PeerConfig: flags, peer.toml, defaults, and the paths of a peer's files
    hf_model_section.py        the section on a model of the Hugging Face library, as `peer init` writes it
    model_shapes.py            shapes of the model's parameters, and how a manifest cuts a model into fragments
    averaging_rules.py         the outer rule, codec and limits that follow from a manifest

The docstrings below fields and constants give the sources of the defaults.
"""
