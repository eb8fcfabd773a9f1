"""The only access to external names in a manifest. No torch.

The files, each built on those above it:

    web_request.py  HTTP requests without credentials, with restricted redirects and time limits
    hub_files.py    files of one repository of the Hugging Face hub at one commit
"""
