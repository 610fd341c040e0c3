"""Functions of Spark 4.0 that return the same result for the same arguments, and keywords before a parenthesis.

Every other function counts as non-deterministic: it may read the clock, the session, the position of a row or a random
number, or come from a later version, a catalog or a user. Aggregates are listed if their result does not depend on the
order of the rows, at least under the conditions of `deterministic.list_conditions`.

Source: Spark 4.0's FunctionRegistry; the lists are in the order of its groups.
"""

from typing import Final

from odradek.spark_it.sql.tokens import split_words

_SCALARS: Final = split_words(
    # arrays, collections, maps and structs
    "array array_append array_compact array_contains array_distinct array_except array_insert array_intersect"
    " array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort"
    " array_union arrays_overlap arrays_zip cardinality concat element_at flatten get reverse sequence size slice"
    " sort_array try_element_at map map_concat map_contains_key map_entries map_from_arrays map_from_entries map_keys"
    " map_values named_struct str_to_map struct"
    # lambdas
    " aggregate exists filter forall map_filter map_zip_with reduce transform transform_keys transform_values zip_with"
    # bits
    " bit_count bit_get getbit shiftleft shiftright shiftrightunsigned bitmap_bit_position bitmap_bucket_number"
    " bitmap_count"
    # conditions and predicates
    " between coalesce equal_null if ifnull ilike isnan isnotnull isnull like nanvl nullif nullifzero nvl nvl2 regexp"
    " regexp_like rlike when zeroifnull"
    # conversions
    " bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast"
    # CSV, JSON, XML, variants, Avro and Protobuf
    " from_csv schema_of_csv to_csv from_json get_json_object json_array_length json_object_keys json_tuple"
    " schema_of_json to_json from_xml schema_of_xml to_xml xpath xpath_boolean xpath_double xpath_float xpath_int"
    " xpath_long xpath_number xpath_short xpath_string is_variant_null parse_json schema_of_variant to_variant_object"
    " try_parse_json try_variant_get variant_get from_avro from_protobuf schema_of_avro to_avro to_protobuf"
    # dates and times; `deterministic` checks those that read the clock
    " add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc"
    " dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp"
    " hour last_day make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz"
    " make_ym_interval minute month monthname months_between next_day quarter second session_window timestamp_micros"
    " timestamp_millis timestamp_seconds timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz"
    " to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp"
    " try_make_timestamp_ltz try_make_timestamp_ntz try_to_timestamp unix_date unix_micros unix_millis unix_seconds"
    " unix_timestamp weekday weekofyear window window_time year curdate current_date current_timestamp localtimestamp"
    " now"
    # generators of rows
    " explode explode_outer inline inline_outer posexplode posexplode_outer range stack"
    # hashes and ciphers; aes_encrypt takes a random initialization vector
    " crc32 hash md5 sha sha1 sha2 xxhash64 aes_decrypt try_aes_decrypt"
    # numbers
    " abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp"
    " expm1 factorial floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power"
    " radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract"
    " unhex width_bucket"
    # text and addresses
    " ascii base64 bit_length btrim char char_length character_length chr collate collation concat_ws contains decode"
    " elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length"
    " levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf"
    " regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace right"
    " rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary to_char"
    " to_number to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper"
    " validate_utf8 parse_url try_parse_url try_url_decode url_decode url_encode"
    # others
    " assert_true hll_sketch_estimate hll_union raise_error typeof"
)
_AGGREGATES: Final = split_words(
    "any approx_count_distinct avg bit_and bit_or bit_xor bitmap_construct_agg bitmap_or_agg bool_and bool_or corr"
    " count count_if count_min_sketch covar_pop covar_samp every grouping grouping_id kurtosis max max_by mean median"
    " min min_by mode percentile percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2"
    " regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop"
    " var_samp variance"
    # over a window
    " cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
)
REPEATABLE: Final = _SCALARS | _AGGREGATES
"""In lower case."""

KEYWORDS: Final = split_words(
    "all and anti as between by case cluster cross cube distinct distribute else escape except exists filter for from"
    " full group having in inner intersect is join lateral left like limit minus natural not offset on or order outer"
    " over partition pivot qualify range recursive right rlike rollup rows select semi sets some sort table tablesample"
    " then union unpivot using values when where window with within"
    # types with a length or a precision
    " array char character dec decimal interval map numeric struct varchar"
)
"""Keywords of Spark's grammar that may precede a parenthesis and are not function calls, in lower case."""
