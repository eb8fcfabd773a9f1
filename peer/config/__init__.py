"""What all peers of a run must agree on (the manifest), and what one volunteer may choose (PeerConfig). No torch.

The files, each built on those above it:

    retired_fields.py          fields of a run file that went, and what to use instead
    validation_sentences.py    what is wrong with a file or a flag, in sentences
    section.py                 what all sections of a manifest have in common
    learning_rate_schedule.py  the manifest's schedule of the inner learning rate, and the factor that follows
    access_sections.py         the manifest's sections on access and on changes in a live run
    allowed_files.py           the manifest's list of files, which members serve
    hf_config.py               the text that describes a model of the Hugging Face library, and what it may not hold
    model_section.py           the manifest's section on the model
    training_section.py        the manifest's section on the inner loop
    data_source.py             the manifest's section on data, and what a volunteer reads instead
    unknown_rules.py           the refusal of a run whose rules this software does not know
    manifest.py                RunManifest
    peer_config.py             PeerConfig: flags, peer.toml, defaults; where files of a peer are
    hf_model_section.py        the section on a model of the Hugging Face library, as `peer init` writes it
    model_shapes.py            shapes of the model's parameters, and how a manifest cuts a model into fragments
    averaging_rules.py         what a manifest asks: outer rule, codec, limits

Sources of the manifest's defaults are named beside each field in `manifest.py`.
"""
