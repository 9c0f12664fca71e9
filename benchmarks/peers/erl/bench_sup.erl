%% The supervisors of the benchmark: one for children that are all alike, one for children that are named.
-module(bench_sup).
-behaviour(supervisor).
-export([start_link/1, init/1]).

start_link(Kind) -> supervisor:start_link(?MODULE, Kind).

init(simple) ->
    Child = #{id => worker, start => {bench, start_worker, []}, shutdown => 5000},
    {ok, {#{strategy => simple_one_for_one}, [Child]}};
init(one) ->
    {ok, {#{strategy => one_for_one}, []}}.
