"""Pages of the development mailbox."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from portal.mailbox import selectors
from portal.mailbox.access import is_mailbox_open


def mailbox(request: HttpRequest) -> HttpResponse:
    if not is_mailbox_open(request):
        raise Http404
    return render(request, "portal/mailbox/list.html", {"mails": selectors.latest_mails()})


def mail(request: HttpRequest, name: str) -> HttpResponse:
    if not is_mailbox_open(request):
        raise Http404
    found = selectors.find_mail(name)
    if found is None:
        raise Http404("No such mail.")
    return render(request, "portal/mailbox/mail.html", {"mail": found})
