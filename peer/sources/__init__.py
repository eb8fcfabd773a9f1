"""The only access to external names in a manifest: their allowed form, the module that fetches them, limits. No torch.

The files, each built on those above it:

    outside_names.py  the table of all manifest fields that could name a place, with rules
    web_request.py    HTTP requests without credentials, with restricted redirects and time limits
    hub_files.py      files of one repository of the Hugging Face hub at one commit
"""
