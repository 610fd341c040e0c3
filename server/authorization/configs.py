"""DescribeConfigs. The handlers of AlterConfigs and IncrementalAlterConfigs check rights by `find_config_error`."""

from typing import TYPE_CHECKING

from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResult,
)
from odradek.server.authorization.guarding import GuardServices, Proceed, join, then
from odradek.server.handlers.topics.configs import find_config_error
from odradek.server.security.authorization.rights import DECISIONS_PER_STEP, Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from collections.abc import Generator

    from odradek.server.request import Reply, RequestContext

_Resource = DescribeConfigsRequestDescribeConfigsResource
_Result = DescribeConfigsResponseDescribeConfigsResult


def describe_configs(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DescribeConfigsRequest,
    proceed: Proceed[DescribeConfigsRequest, DescribeConfigsResponse],
) -> "Reply[DescribeConfigsResponse]":
    """Describe the resources whose configurations the client may describe; the errors of the others follow them."""

    def divide() -> "Generator[None, None, tuple[list[_Resource], list[_Result]]]":
        allowed, errors = [], []
        for number, resource in enumerate(request.resources, 1):
            error = find_config_error(rights, resource.resource_type, resource.resource_name)
            if error is None:
                allowed.append(resource)
            else:
                errors.append(
                    _Result(
                        error_code=error.code,
                        error_message=error.message,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
                )
            if number % DECISIONS_PER_STEP == 0:
                yield
        return allowed, errors

    def describe(divided: tuple[list[_Resource], list[_Result]]) -> "Reply[DescribeConfigsResponse]":
        allowed, errors = divided
        if not errors:
            return proceed(request)
        if not allowed:
            return DescribeConfigsResponse(results=errors)
        rest = DescribeConfigsRequest(
            resources=allowed,
            include_synonyms=request.include_synonyms,
            include_documentation=request.include_documentation,
        )
        return map_reply(
            proceed(rest), lambda response: DescribeConfigsResponse(results=join(response.results, errors))
        )

    return then(services, divide(), describe)
