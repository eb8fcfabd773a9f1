"""The model taken home: a folder or a file, text from it, its validation loss.

    formats/  the forms in which a model is written and read

The files, each built on those above it:

    model_source.py      where a model is taken from: members or a checkpoint; in which form it is written
    saved_anchors.py     a run's anchors, from a checkpoint
    members_anchors.py   a run's anchors, from its members
    opened_model.py      a model ready for use, wherever it came from
    hub_push.py          a folder on the Hugging Face Hub
    before_export.py     what is seen to before anything is loaded
    export.py            `peer export`
    chat_rendering.py    a run's chat template, in a process with limits
    chat.py              what a person says, in the form of the run's chat template
    sample.py            `peer sample`
    sampling_process.py  a process that writes samples for a page
    task_scores.py       scores in tasks of lm-eval
    evaluate.py          `peer evaluate`
"""
