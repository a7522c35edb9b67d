package main

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser/ast"
)

// known are the parser's nodes that lockgen understands, each with the fields that may say
// something. A field with a + has no nodes in it. All that isn't here is refused: it could
// be a table, or a call of a program.
var known = fieldsOf(`
SelectStmt +SelectStmtOpts +Distinct From Where Fields GroupBy Having WindowSpecs OrderBy Limit LockInfo +TableHints +IsInBraces +WithBeforeBraces +QueryBlockOffset +AfterSetOperator +Kind Lists With
SetOprStmt +IsInBraces SelectList OrderBy Limit With
SetOprSelectList With +AfterSetOperator Selects Limit OrderBy
InsertStmt +IsReplace +IgnoreErr Table Columns Lists +Setlist OnDuplicate Select
UpdateStmt TableRefs List Where Order Limit +IgnoreErr +MultipleTable With
DeleteStmt TableRefs Tables Where Order Limit +IgnoreErr +IsMultiTable +BeforeFrom With
Assignment Column Expr
DeleteTableList Tables
WithClause +IsRecursive CTEs
CommonTableExpression +Name Query +ColNameList +IsRecursive +ConsumerCount
TableRefsClause TableRefs
Join Left Right +Tp On Using +NaturalJoin +StraightJoin +ExplicitParens
OnCondition Expr
TableSource Source +AsName +ColumnNames +Lateral
TableName +Schema +Name +IndexHints
SelectLockInfo +LockType +WaitSec Tables
FieldList Fields
SelectField +Offset WildCard Expr +AsName +Auxiliary +AuxiliaryColInAgg +AuxiliaryColInOrderBy
WildCardField +Table +Schema
GroupByClause Items +Rollup
HavingClause Expr
OrderByClause Items +ForUnion
ByItem Expr +Desc +NullOrder
Limit Count Offset
WindowSpec +Name +Ref PartitionBy OrderBy Frame +OnlyAlias
PartitionByClause Items
FrameClause +Type Extent
FrameExtent Start End
FrameBound +Type +UnBounded Expr +Unit
ColumnName +Schema +Table +Name
ColumnNameExpr Name
ValueExpr
ParamMarkerExpr
ParenthesesExpr Expr
BinaryOperationExpr +Op L R
UnaryOperationExpr +Op V
BetweenExpr Expr Left Right +Not
CaseExpr Value WhenClauses ElseClause
WhenClause Expr Result
SubqueryExpr Query +Evaluated +Correlated +MultiRows +Exists
CompareSubqueryExpr L +Op R +All
ExistsSubqueryExpr Sel +Not
PatternInExpr Expr List +Not Sel
IsNullExpr Expr +Not
IsTruthExpr Expr +Not +True
PatternLikeOrIlikeExpr Expr Pattern +Not +IsLike +Escape +EscapeExplicit
PatternRegexpExpr Expr Pattern +Not
PositionExpr +N P
RowExpr Values
ValuesExpr Column
DefaultExpr Name
MatchAgainst ColumnNames Against +Modifier
SetCollationExpr Expr +Collate
VariableExpr +Name +IsGlobal +IsSystem +ExplicitScope
FuncCallExpr +Tp +FnName Args
FuncCastExpr Expr +Tp +FunctionType +ExplicitCharSet
AggregateFuncExpr +F Args +Distinct Order
WindowFuncExpr +Name Args +Distinct +IgnoreNull +FromLast Spec
TrimDirectionExpr +Direction
TimeUnitExpr +Unit
GetFormatSelectorExpr +Selector`)

// builtin are functions of the servers that write nothing. A stored function may write any table.
var builtin = strings.Fields(`abs acos addtime adddate ascii asin atan atan2 bin bin_to_uuid bit_count bit_length
	ceil ceiling char char_func char_length character_length charset coalesce collation compress concat concat_ws
	connection_id conv convert_tz cos cot crc32 curdate current_date current_time current_timestamp current_user
	curtime database date date_add date_format date_sub datediff day dayname dayofmonth dayofweek dayofyear degrees
	elt exp export_set extract field find_in_set floor format found_rows from_base64 from_days from_unixtime
	get_format greatest hex hour if ifnull inet6_aton inet6_ntoa inet_aton inet_ntoa insert_func instr is_uuid isnull
	json_array json_array_append json_array_insert json_contains json_contains_path json_depth json_extract
	json_insert json_keys json_length json_merge json_merge_patch json_merge_preserve json_object json_overlaps
	json_pretty json_quote json_remove json_replace json_search json_set json_type json_unquote json_valid json_value
	last_day last_insert_id lcase least left length ln localtime localtimestamp locate log log10 log2 lower lpad ltrim
	make_set makedate maketime md5 microsecond mid minute mod month monthname now nullif oct octet_length ord
	period_add period_diff pi position pow power quarter quote radians rand random_bytes regexp_instr regexp_like
	regexp_replace regexp_substr repeat replace reverse right round row_count rpad rtrim schema sec_to_time second
	session_user sha sha1 sha2 sign sin sleep soundex space sqrt st_astext st_distance st_distance_sphere
	st_geomfromtext st_x st_y str_to_date strcmp subdate substr substring substring_index subtime sysdate system_user
	tan time time_format time_to_sec timediff timestamp timestampadd timestampdiff to_base64 to_days to_seconds trim
	truncate ucase uncompress unhex unix_timestamp upper user utc_date utc_time utc_timestamp uuid uuid_short
	uuid_to_bin version week weekday weekofyear weight_string year yearweek`)

func fieldsOf(list string) map[string][]string {
	nodes := map[string][]string{}
	for line := range strings.Lines(strings.TrimSpace(list)) {
		words := strings.Fields(line)
		nodes[words[0]] = words[1:]
	}
	return nodes
}

// unknown returns an error that names what lockgen doesn't know in a statement.
func unknown(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return unknown(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if err := unknown(v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	name := v.Type().Name()
	fields, ok := known[name]
	if !ok {
		return fmt.Errorf("lockgen doesn't know the parser's %s", name)
	}
	if call, ok := v.Interface().(ast.FuncCallExpr); ok && !slices.Contains(builtin, call.FnName.L) {
		return fmt.Errorf("lockgen doesn't know the function %s, and a stored one may write", call.FnName.O)
	}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch {
		case field.Anonymous && !field.IsExported(), len(fields) == 0, slices.Contains(fields, "+"+field.Name), empty(v.Field(i)):
		case !slices.Contains(fields, field.Name):
			return fmt.Errorf("lockgen doesn't know the parser's %s of %s", field.Name, name)
		default:
			if err := unknown(v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// empty tells whether a field says nothing.
func empty(v reflect.Value) bool { return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 }

// A hint that changes neither what a statement does nor how the server reads it.
var harmless = regexp.MustCompile(`(?i)^/\*\+\s*MAX_EXECUTION_TIME\(\s*\d+\s*\)\s*\*/`)

// conditional returns an error where a statement has a comment that a server may execute:
// the parser skips some that a server reads, and reads some that a server skips.
func conditional(sql string) error {
	for at := 0; at < len(sql); {
		rest := sql[at:]
		body, length := commentAt(rest)
		executed := strings.HasPrefix(rest, "/*") && (length == 0 || strings.HasPrefix(body, "T!") || strings.HasPrefix(body, "T["))
		switch {
		case executed, strings.HasPrefix(body, "+") && length > 0 && rest[0] == '/' && !harmless.MatchString(rest):
			return fmt.Errorf("what stands in %.12s... is read by some servers only: write it without this comment", rest)
		case length > 0:
			at += length
		default:
			at += quoted(rest)
		}
	}
	return nil
}

// ambivalent returns why a statement may be another one under another sql_mode, or nothing.
func ambivalent(sql string) string {
	for at := 0; at < len(sql); {
		if _, length := commentAt(sql[at:]); length > 0 {
			at += length
			continue
		}
		length := quoted(sql[at:])
		switch text := sql[at : at+length]; {
		case text[0] == '"', length > 1 && text[0] == '\'' && strings.Contains(text, `\`):
			return `sql_mode decides what "..." and a \ in a text mean: write '...', and a parameter for such a text`
		case strings.HasPrefix(sql[at:], "||"):
			return "sql_mode decides what || means: write OR or CONCAT"
		}
		at += length
	}
	return ""
}
