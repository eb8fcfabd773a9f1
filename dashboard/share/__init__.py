"""What visitors take along: pictures for links, codes for phones, a mail. Pillow is loaded with the first picture.

The files, each built on those above it:

    page_address.py    the address under which visitors see the page
    qr_code.py         that address, or another, for a phone
    join_mail.py       a mail to oneself with the lines that join, and where their software is read (pure)
    card_lettering.py  which letters the font has, and what stands for the others
    card_text.py       what is written on a card
    card_drawing.py    the card as a PNG of 1200 x 630 pixels
    card_cache.py      cards that were made lately, one made at a time
"""
