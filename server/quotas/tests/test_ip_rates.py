"""The connection rates of host names, which are resolved while the quota may change again."""

import pytest
from twisted.internet.defer import Deferred

from odradek.server.quotas.ip_rates import IpRates
from odradek.server.quotas.rates import Window

HOST, ADDRESS, OTHER = "client.example", "10.0.0.7", "10.0.0.8"


class Setting:
    def __init__(self):
        self.pending = []
        self.rates = IpRates(Window(2, 1000), lambda: 0, self)

    def resolve(self, host):
        self.pending.append(Deferred())
        return self.pending[-1]

    def put(self, rate=None):
        self.rates.update({f"ips/{HOST}": {} if rate is None else {"connection_creation_rate": str(rate)}})

    def answer(self, address=ADDRESS):
        self.pending.pop(0).callback(address)

    def accepted(self, address=ADDRESS):
        """Return how many of 20 connections are accepted."""
        return sum(not self.rates.throttle(address) for _ in range(20))


@pytest.fixture
def setting():
    return Setting()


def test_a_quota_applies_when_the_name_is_resolved(setting):
    setting.put(5)
    assert setting.accepted() == 20
    setting.answer()
    assert setting.accepted() == 5
    setting.put()
    assert setting.accepted() == 20


def test_a_quota_that_is_removed_before_the_name_is_resolved_has_no_effect(setting):
    setting.put(5)
    setting.put()
    setting.answer()
    assert setting.accepted() == 20


def test_of_two_quotas_the_second_applies_in_whatever_order_the_name_is_resolved(setting):
    setting.put(5)
    setting.put(10)
    setting.pending.reverse()
    setting.answer()
    setting.answer()
    assert setting.accepted() == 10


def test_a_name_that_has_another_address_when_the_quota_is_set_again(setting):
    setting.put(5)
    setting.answer()
    setting.put(10)
    setting.answer(OTHER)
    assert (setting.accepted(), setting.accepted(OTHER)) == (20, 10)
