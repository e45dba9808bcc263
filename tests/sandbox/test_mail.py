"""Mail over real SMTP, and its misbehaviour."""

import smtplib
from email.message import EmailMessage

import pytest

from agentops.sandbox.client import SandboxLedger
from tests.sandbox.process import SandboxProcess


def mail(**headers: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "shop@example.com"
    message["To"] = "customer+1042@example.com"
    message["Subject"] = "Rückzahlung"
    message["Message-ID"] = "<m-1@example.com>"
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content("Grüße\n")
    return message


def send(sandbox: SandboxProcess, message: EmailMessage) -> None:
    with smtplib.SMTP("127.0.0.1", sandbox.smtp_port, timeout=5) as connection:
        connection.send_message(message)


def test_an_accepted_mail_stands_in_the_ledger(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    send(sandbox, mail(X_Idempotency_Key="k-1", X_Order_Id="1042", X_Run_Id="r-1"))
    found = ledger.mails(message_id="<m-1@example.com>")[0]
    assert found["to"] == ["customer+1042@example.com"]
    assert (found["subject"], found["text"], found["key"]) == ("Rückzahlung", "Grüße\n", "k-1")
    entry = ledger.entries(kind="mail", key="k-1", order_id="1042")[0]
    assert (entry.reference, entry.business_key) == ("<m-1@example.com>", "run:r-1")


def test_a_mail_sent_twice_is_counted_twice(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    for _ in range(2):
        send(sandbox, mail(X_Idempotency_Key="k-1"))
    assert [(repeat.kind, repeat.what, repeat.times) for repeat in ledger.summary().repeated] == [
        ("mail", "key:k-1", 2)
    ]


@pytest.mark.parametrize("fault", ["close_after", "timeout_after:0.01"])
def test_a_connection_cut_before_the_250_hides_an_accepted_mail(
    sandbox: SandboxProcess, ledger: SandboxLedger, fault: str
) -> None:
    with pytest.raises((smtplib.SMTPServerDisconnected, ConnectionError)):
        send(sandbox, mail(X_Sandbox_Fault=fault))
    assert ledger.count(kind="mail") == 1


@pytest.mark.parametrize("fault", ["close_before", "timeout_before:0.01"])
def test_a_connection_cut_before_the_work_leaves_no_mail(
    sandbox: SandboxProcess, ledger: SandboxLedger, fault: str
) -> None:
    with pytest.raises((smtplib.SMTPServerDisconnected, ConnectionError)):
        send(sandbox, mail(X_Sandbox_Fault=fault))
    assert ledger.count(kind="mail") == 0


def test_a_refused_mail_may_be_sent_again(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    ledger.script("SMTP", "451")
    with pytest.raises(smtplib.SMTPDataError) as caught:
        send(sandbox, mail())
    assert caught.value.smtp_code == 451
    send(sandbox, mail())
    assert ledger.count(kind="mail") == 1


def test_a_client_that_gives_up_finds_its_mail_accepted(
    sandbox: SandboxProcess, ledger: SandboxLedger
) -> None:
    connection = smtplib.SMTP("127.0.0.1", sandbox.smtp_port, timeout=0.3)
    with connection, pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
        connection.send_message(mail(X_Sandbox_Fault="timeout_after"))
    assert ledger.count(kind="mail") == 1


def test_an_unknown_fault_in_a_mail_is_refused(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    with pytest.raises(smtplib.SMTPDataError) as caught:
        send(sandbox, mail(X_Sandbox_Fault="503"))
    assert caught.value.smtp_code == 554
    assert ledger.count(kind="mail") == 0


def test_undecodable_bytes_are_taken_as_they_are(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    raw = b"Subject: \xff\xfe\r\nContent-Type: text/plain; charset=klingon\r\n\r\n\xff tlh\r\n"
    with smtplib.SMTP("127.0.0.1", sandbox.smtp_port, timeout=5) as connection:
        connection.sendmail("a@example.com", ["b@example.com", "c@example.com"], raw)
    assert "tlh" in ledger.mails()[0]["text"]
    assert ledger.mails()[0]["to"] == ["b@example.com", "c@example.com"]
