"""The front end's side of `ensure`: a table of known verdicts, and vLLM's own utility calls behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from cachetools import TTLCache

from vllm_grammar_backend import admission, pin, settings, ticket
from vllm_grammar_backend.desk import CALL, COLD, ERROR, FOUND, WAITER, Verb
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.metrics import Metrics
from vllm_grammar_backend.service import Found
from vllm_grammar_backend.settings import ColdRequests
from vllm_grammar_backend.tenant import tenant_of
from vllm_grammar_backend.ticket import Ticket

logger = logging.getLogger("vllm.grammar_backend")

WATCH_S: Final = 1.0
"""How often engines are asked for what metrics show."""
KNOWN_GOOD: Final = 100_000
"""Digests remembered as good; about 200 bytes each."""
GOOD_TTL_S: Final = 60.0
"""So long a digest is taken for known without asking. A grammar evicted meanwhile is built again in the engine."""
KNOWN_BAD: Final = 10_000
BAD_TTL_S: Final = 30.0


class Gate:
    """Admits constraints in one front-end process. Used on one event loop, or by one thread offline."""

    def __init__(self, found: pin.Pin, structured_outputs_config: Any, model_name: str = "") -> None:
        self._metrics = Metrics(found.backend, model_name)
        self.settings = settings.load(found.file)
        self._defaults = pin.options_of(self.settings, structured_outputs_config)
        self._good: TTLCache[str, bool] = TTLCache(KNOWN_GOOD, GOOD_TTL_S)
        self._bad: TTLCache[str, dict[str, Any]] = TTLCache(KNOWN_BAD, BAD_TTL_S)
        self._ranks_agree = False
        self._tasks: set[asyncio.Future[Any]] = set()

    async def admit_request(self, request: Any, tokenizer: Any, client: Any) -> None:
        """Admit and vouch for the constraint of an HTTP request, and put the ticket where vLLM takes it along.

        Args:
            request: vLLM's chat, completion or responses request, after its tool parser has seen it.
            tokenizer: the model's.
            client: vLLM's asynchronous engine-core client.

        Raises:
            GrammarError: the verdict, or an option that does not go with a constraint.
        """
        with self._counted():
            Ticket.of(request.vllm_xargs)
            params = request.extract_structured_outputs()
            if params is not None:
                check_companions(request, tokenizer)
                admitted = await self._admit(params, request.vllm_xargs, client)
                request.vllm_xargs = {**(request.vllm_xargs or {}), pin.KEY: admitted}

    async def admit_params(self, sampling_params: Any, client: Any) -> Ticket:
        """As `admit_request`, for constrained sampling parameters, which may carry a ticket of ours already."""
        with self._counted():
            admitted = Ticket.of(sampling_params.extra_args)
            if admitted is None:
                check_companions(sampling_params)
                admitted = await self._admit(sampling_params.structured_outputs, sampling_params.extra_args, client)
            return admitted

    def admit_params_blocking(self, sampling_params: Any, client: Any) -> Ticket:
        """As `admit_params`, for offline use; `client` is vLLM's synchronous or in-process engine-core client."""
        with self._counted():
            check_companions(sampling_params)
            admitted = self._issue(sampling_params.structured_outputs, self._owner(sampling_params.extra_args))
            if not self._known(admitted):
                inner = getattr(client, "engine_core", None)
                asked = {**admitted, WAITER: uuid4().hex}
                if inner is None:
                    answer = client.call_utility(CALL, Verb.ENSURE, asked)
                else:
                    answer = getattr(inner, CALL)(Verb.ENSURE, asked).result()
                self._record(admitted, [answer])
            return admitted

    def start_watching(self, client: Any) -> None:
        """Report to `/metrics` what engines report of themselves; one of several API servers does."""
        if getattr(client, "client_index", 0) == 0:
            self._in_background(self._watch(client))

    async def _watch(self, client: Any) -> None:
        silent = False
        while True:
            try:
                for facts in await client.call_utility_all_async(CALL, Verb.OBSERVE):
                    self._metrics.engine(facts)
                silent = False
            except Exception as error:  # noqa: BLE001 - it is vLLM's to say that an engine has died
                if not silent:
                    logger.warning("The engines' metrics are not updated for now: %s", type(error).__name__)
                silent = True
            await asyncio.sleep(WATCH_S)

    async def issue(self, params: Any, owner: str) -> Ticket:
        """Bounds, one parse, the digest; a large constraint is walked on a thread, so that the loop keeps turning.

        Raises:
            GrammarError: past a limit, not even JSON, or an option that is not supported.
        """
        _, value = ticket.constraint(params)
        if admission.is_small(value):
            return self._issue(params, owner)
        return await asyncio.to_thread(self._issue, params, owner)

    def _issue(self, params: Any, owner: str) -> Ticket:
        kind, value = ticket.constraint(params)
        options = ticket.request_options(params, self._defaults)
        return Ticket(admission.admit(kind, value, options, self.settings.limits), owner)

    def _owner(self, arguments: Mapping[str, Any] | None) -> str:
        return tenant_of(self.settings.tenant_from, arguments)

    async def _admit(self, params: Any, arguments: Mapping[str, Any] | None, client: Any) -> Ticket:
        """Wait until the engine has the grammar ready; a known digest costs a look-up."""
        admitted = await self.issue(params, self._owner(arguments))
        if not self._known(admitted):
            await self.ensure(admitted, client, self.settings.cold_requests)
        return admitted

    async def ensure(self, admitted: Ticket, client: Any, cold: ColdRequests = ColdRequests.WAIT) -> None:
        """Have every rank's grammar ready.

        Raises:
            GrammarError: why it is not.
        """
        if not self._ranks_agree:
            self._compare(await client.call_utility_all_async(CALL, Verb.STATISTICS))
        began, waiter = monotonic(), uuid4().hex
        try:
            asked = {**admitted, WAITER: waiter, COLD: cold}
            answers = await client.call_utility_all_async(CALL, Verb.ENSURE, asked)
        except asyncio.CancelledError:
            self._in_background(client.call_utility_all_async(CALL, Verb.RELEASE, waiter))
            raise
        self._record(admitted, answers, monotonic() - began)

    def _in_background(self, call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except GrammarError as error:
            self._metrics.refused(error.code)
            raise

    def _compare(self, ranks: list[dict[str, str | int]]) -> None:
        """Refuse to serve where engines run with other settings or libraries than this front end or each other."""
        seen = {(rank["settings"], rank["backend"], rank["version"], rank["vocabulary"]) for rank in ranks}
        if len(seen) > 1 or any(rank["settings"] != self.settings.digest for rank in ranks):
            reason = "the processes of this server disagree on the backend, its version or its settings"
            raise GrammarError(ErrorCode.UNAVAILABLE, reason, hint="Restart all of them with the same settings file.")
        self._ranks_agree = True

    def _known(self, admitted: Ticket) -> bool:
        digest = admitted.spec.digest
        refusal = self._bad.get(digest)
        if refusal is not None:
            # A new exception each time: one that is raised again keeps the frames of every request it ended.
            raise GrammarError.from_data(refusal)
        known = digest in self._good
        if known:
            self._metrics.waited(Found.HIT, 0.0)
        return known

    def _record(self, admitted: Ticket, answers: list[dict[str, Any]], seconds: float = 0.0) -> None:
        digest = admitted.spec.digest
        found = {answer[FOUND] for answer in answers}
        self._metrics.waited(next(each for each in reversed(Found) if each in found), seconds)
        refusals = [GrammarError.from_data(answer[ERROR]) for answer in answers if answer[ERROR]]
        if not refusals:
            self._good[digest] = True
            return
        if not refusals[0].retryable:
            self._bad[digest] = refusals[0].as_data()
        raise refusals[0]


def check_companions(request: object, tokenizer: Any = None, *, beam_search: bool = False) -> None:
    """Refuse options of a request (or its sampling parameters) that would drop or break any constraint beside them.

    Raises:
        GrammarError: names the option.
    """
    if beam_search or getattr(request, "use_beam_search", False):
        option, why = "use_beam_search", "beam search does not keep to a constraint"
    elif getattr(request, "allowed_token_ids", None) is not None:
        option, why = "allowed_token_ids", "allowed_token_ids beside a constraint can leave no token at all"
    elif tokenizer is not None and any(map(_ends_in_one_byte(tokenizer), getattr(request, "bad_words", None) or ())):
        option, why = "bad_words", "a bad word that ends in a token of one byte can leave a constraint no token at all"
    else:
        return
    raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, why, keyword=option)


def _ends_in_one_byte(tokenizer: Any) -> Callable[[str], bool]:
    """A bad word bars its last token. Any longer one can be spelt by others, so only these leave a dead end."""

    def check(word: str) -> bool:
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tokenizer.encode(text, add_special_tokens=False)
            # A token that is a part of a character reads as U+FFFD.
            last = tokenizer.decode(ids[-1:]) if ids else "  "
            if len(last.encode()) <= 1 or "\ufffd" in last:
                return True
        return False

    return check
