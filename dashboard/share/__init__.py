"""What visitors take along: pictures for links, codes for phones, a mail. Pillow is loaded with the first picture.

The files, each built on those above it:

    origin.py     the address under which visitors see the page
    qr_code.py    that address, or another, for a phone
    way_in.py     a mail to oneself with the lines that join, and where their software is read (pure)
    lettering.py  which letters the font has, and what stands for the others
    content.py    what is written on a card
    drawing.py    the card as a PNG of 1200 x 630 pixels
    card_cache.py cards that were made lately, one made at a time
"""
